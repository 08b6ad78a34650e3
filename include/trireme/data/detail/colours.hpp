#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"

namespace trireme::data::detail {

/// A number for each colour: red, green and blue.
using of_colours = std::array<double, 3>;

/// What a byte of each colour becomes: (byte / 255 - mean) / deviation, computed in double and rounded once.
///
/// Errors   config_error for a deviation that is not above 0, and for numbers that float32 cannot hold.
/// @param who  begins the sentences of errors.
[[nodiscard]] inline std::array<std::array<float, 256>, 3> numbers_of_bytes(char const* who, of_colours const& means,
                                                                            of_colours const& deviations) {
  std::array<std::array<float, 256>, 3> out{};
  for (std::size_t colour = 0; colour < 3; ++colour) {
    auto const mean = means[colour], deviation = deviations[colour];
    auto const refuse = [&](char const* why) {
      return config_error(text(who, ": the mean ", mean, " and deviation ", deviation, " of colour ", colour, why));
    };
    if (!(deviation > 0) || !std::isfinite(deviation) || !std::isfinite(mean)) {
      throw refuse(" must be finite, and the deviation above 0");
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
      auto const number = (static_cast<double>(byte) / 255 - mean) / deviation;
      if (!(std::abs(number) <= static_cast<double>(std::numeric_limits<float>::max()))) {
        throw refuse(" give numbers that float32 cannot hold");
      }
      out[colour][byte] = static_cast<float>(number);
    }
  }
  return out;
}

/// ", .mean = {0.5, 0.5, 0.5}, .deviation = {0.2, 0.2, 0.2}", without those that change nothing.
[[nodiscard]] inline std::string text_of_colours(of_colours const& means, of_colours const& deviations) {
  std::string out;
  auto const add = [&](char const* field, of_colours const& of, double usual) {
    if (of != of_colours{usual, usual, usual}) out += text(", .", field, " = {", of[0], ", ", of[1], ", ", of[2], "}");
  };
  add("mean", means, 0);
  add("deviation", deviations, 1);
  return out;
}

}  // namespace trireme::data::detail
