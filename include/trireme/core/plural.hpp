#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/core/exact.hpp"
#include "trireme/core/text.hpp"

namespace trireme {

// Numbers in messages.

/// The word form that agrees with a number: `agreeing(ranks.size(), "has", "have")`.
template <class Number>
[[nodiscard]] constexpr std::string_view agreeing(Number count, std::string_view one,
                                                  std::string_view several) noexcept {
  return count == 1 ? one : several;
}

/// "elements", "classes", "queries", "keys"
[[nodiscard]] inline std::string plural_of(std::string_view one) {
  auto const ends = [&](std::string_view with) { return one.ends_with(with); };
  if (ends("s") || ends("x") || ends("ch")) return text(one, "es");
  if (ends("y") && !ends("ay") && !ends("ey")) return text(one.substr(0, one.size() - 1), "ies");
  return text(one, "s");
}
/// "1 element", "0 elements", "12 classes"
template <class Number>
[[nodiscard]] std::string how_many(Number count, std::string_view one) {
  return exactly_equal(count, Number{1}) ? text(count, " ", one) : text(count, " ", plural_of(one));
}

/// "rank 1", "ranks 1, 3"; empty if there are none.
template <class Numbers>
[[nodiscard]] std::string list_of(std::string_view one, Numbers const& numbers) {
  std::string out;
  for (auto const each : numbers) out += text(out.empty() ? "" : ", ", each);
  return out.empty() ? out : text(one, agreeing(numbers.size(), "", "s"), " ", out);
}

}  // namespace trireme
