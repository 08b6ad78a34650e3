#pragma once

#include <string>
#include <string_view>

#include "trireme/core/error.hpp"

/// What an action throws, in words; empty if it throws nothing.
template <class Action>
std::string sentence_of(Action&& action) {
  try {
    action();
  } catch (trireme::error const& problem) {
    return problem.what();
  }
  return {};
}
inline bool contains(std::string const& text, std::string_view part) { return text.find(part) != std::string::npos; }
