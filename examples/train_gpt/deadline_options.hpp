#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "trireme/comm/command.hpp"
#include "trireme/core/error.hpp"

/// The error of a rank that waited too long names the setting to change in a program; here that is an option: "... or
/// raise --deadline", or --save-deadline if that was the time waited.
[[nodiscard]] inline std::string with_deadline_option(std::string_view sentence,
                                                      std::chrono::milliseconds save_deadline) {
  std::string_view const offered = ", or raise ";
  auto const at = sentence.rfind(offered);
  if (at == sentence.npos || !sentence.ends_with("{.deadline}")) return std::string(sentence);
  bool const saving =
      sentence.ends_with("patience{.deadline}") ||
      sentence.find(trireme::text(" waited ", trireme::comm::to_string(save_deadline), " for ")) != sentence.npos;
  return trireme::text(sentence.substr(0, at + offered.size()), saving ? "--save-deadline" : "--deadline");
}
