#pragma once

#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/shares.hpp"

/// The value of --shares: "even", weights such as "2:1", or "auto" with the steps between two measurements ("auto:50").
/// Throws config_error.
inline trireme::data::shares shares_of(std::string_view const value) {
  auto const refuse = [&] {
    return trireme::config_error(trireme::text(
        "--shares is \"", value, "\"; give even, auto, auto:STEPS, or whole numbers above 0, one per rank: 2:1"));
  };
  auto const number = [&](std::string_view digits) {
    std::int64_t out = 0;
    auto const* const end = digits.data() + digits.size();
    auto const read = std::from_chars(digits.data(), end, out);
    if (read.ec != std::errc{} || read.ptr != end || out < 1) throw refuse();
    return out;
  };
  if (value == "even") return {};
  if (value == "auto") return {.measure_every = 20};
  if (value.starts_with("auto:")) return {.measure_every = number(value.substr(5))};
  trireme::data::shares out;
  for (auto left = value;; left.remove_prefix(left.find(':') + 1)) {
    out.weights.push_back(number(left.substr(0, left.find(':'))));
    if (left.find(':') == left.npos) break;
  }
  out.validate();
  return out;
}
