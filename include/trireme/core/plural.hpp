#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/core/text.hpp"

namespace trireme {

// Numbers in sentences.

/// What agrees with a number: `agreeing(ranks.size(), "has", "have")`.
[[nodiscard]] constexpr std::string_view agreeing(std::uint64_t count, std::string_view one,
                                                  std::string_view several) noexcept {
  return count == 1 ? one : several;
}

/// "1 element", "0 elements", "12 elements"
template <class Number>
[[nodiscard]] std::string how_many(Number count, std::string_view one) {
  return text(count, " ", one, count == Number{1} ? "" : "s");
}

/// "rank 1", "ranks 1, 3"; empty if there are none.
template <class Numbers>
[[nodiscard]] std::string list_of(std::string_view one, Numbers const& numbers) {
  std::string out;
  for (auto const each : numbers) out += text(out.empty() ? "" : ", ", each);
  return out.empty() ? out : text(one, agreeing(numbers.size(), "", "s"), " ", out);
}

}  // namespace trireme
