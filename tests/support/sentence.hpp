#pragma once

#include <string>
#include <string_view>

#include "trireme/core/error.hpp"

/// What an action throws, in words; empty if it throws nothing. Other errors pass.
template <class Error = trireme::error, class Action>
std::string sentence_of(Action&& action) {
  try {
    action();
  } catch (Error const& problem) {
    return problem.what();
  }
  return {};
}
inline bool contains(std::string const& text, std::string_view part) { return text.find(part) != std::string::npos; }
