#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/node.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn::detail {

// A model's description lists its fields once: each_field(f) calls f(name, value, allowed values, whether to_string
// prints it) for each of them. What is printed and what is checked follow from the list.

/// Of a field that is not checked by itself.
inline constexpr allowed any_value{.low = std::numeric_limits<double>::lowest()};

[[nodiscard]] inline std::string field_text(nn::image const& it) {
  return text("{", it.height, ", ", it.width, ", ", it.channels, "}");
}
[[nodiscard]] inline std::string field_text(ops::rotary_scaling const& it) {
  return text("{.factor = ", it.factor, ", .original = ", it.original, ", .low = ", it.low, ", .high = ", it.high, "}");
}
template <class Number>
requires std::is_arithmetic_v<Number>
[[nodiscard]] std::string field_text(Number value) { return text(value); }

/// The source that makes a description: `name{.field = value, ...}`.
template <class Model>
[[nodiscard]] std::string text_of_fields(std::string_view name, Model const& model) {
  std::string out;
  model.each_field([&](std::string_view field, auto const& value, allowed const&, bool printed = true) {
    if (printed) out += text(out.empty() ? "." : ", .", field, " = ", field_text(value));
  });
  return text(name, "{", out, "}");
}

/// Throws config_error for the first field that does not have one of its allowed values.
template <class Model>
void expect_fields(std::string_view name, Model const& model) {
  model.each_field([&](std::string_view field, auto const& value, allowed const& range, bool = true) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(value)>>) {
      expect_number(name, text(".", field), value, range);
    }
  });
}

/// Throws config_error unless the channels of a model make so many heads of one width.
inline void expect_heads(char const* model, std::int64_t channels, std::int64_t heads) {
  if (channels % heads == 0) return;
  throw config_error(text("trireme::nn::", model, ": ", how_many(channels, "channel"),
                          agreeing(channels, " is", " are"), " not divisible by ", how_many(heads, "head")));
}

/// Throws config_error unless images have pixels.
inline void expect_image(std::string_view model, nn::image const& it) {
  expect_number(model, ".images.height", it.height, at_least_one);
  expect_number(model, ".images.width", it.width, at_least_one);
  expect_number(model, ".images.channels", it.channels, at_least_one);
}

}  // namespace trireme::nn::detail
