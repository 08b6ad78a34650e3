#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <string>
#include <string_view>

#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/text.hpp"

namespace trireme {

/// The allowed values of a member of a description. NaN is never allowed.
struct allowed {
  double low = 0;
  double high = std::numeric_limits<double>::max();
  bool above = false;  ///< `low` itself is not allowed
  bool below = false;  ///< `high` itself is not allowed

  [[nodiscard]] constexpr bool holds(double value) const noexcept {
    return (above ? value > low : value >= low) && (below ? value < high : value <= high);
  }
};

/// The ranges that most numbers of descriptions have.
inline constexpr allowed not_negative{};
inline constexpr allowed positive{.above = true};
inline constexpr allowed at_least_one{.low = 1};
inline constexpr allowed below_one{.high = 1, .below = true};                             ///< from 0 on
inline constexpr allowed limit_or_none{.high = std::numeric_limits<double>::infinity()};  ///< 0 and infinity: none

/// "above 0", "at least 1", "in [0, 1)"
[[nodiscard]] inline std::string to_string(allowed const& range) {
  if (range.low <= std::numeric_limits<double>::lowest()) return text("at most ", range.high, ", and finite");
  if (range.high >= std::numeric_limits<double>::max())
    return text(range.above ? "above " : "at least ", range.low, std::isinf(range.high) ? "" : ", and finite");
  return text("in ", range.above ? "(" : "[", range.low, ", ", range.high, range.below ? ")" : "]");
}

/// Throws config_error unless a number of a description is in its range.
/// @param description  its public name: "optim::adamw".
/// @param member       ".beta2".
template <class Number>
requires std::integral<Number> || std::floating_point<Number>
void expect_number(std::string_view description, std::string_view member, Number value, allowed const& range) {
  if (range.holds(static_cast<double>(value))) return;
  auto bounds = range;
  if (std::integral<Number> && exactly_equal(range.high, std::numeric_limits<double>::max()))
    bounds.high = std::numeric_limits<double>::infinity();  // whole numbers are finite
  throw config_error(text("trireme::", description, ": ", member, " is ", value, "; it must be ", to_string(bounds)));
}

/// Calls description.validate(), if it exists: that throws config_error for invalid values. Trainers and exchanges call
/// this for each of their descriptions.
template <class Description>
void expect_valid(Description const& description) {
  if constexpr (requires { description.validate(); }) description.validate();
}

}  // namespace trireme
