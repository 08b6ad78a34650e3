#pragma once

#include <cstddef>
#include <vector>

#include "trireme/core/dialect.hpp"

namespace trireme::comm::detail {

/// The arguments of a rank's split().
struct color_and_key {
  int color = 0;
  int key = 0;
};
/// The ranks of one color among the arguments of all ranks, in the order of (key, rank).
[[nodiscard]] inline std::vector<int> ranks_of_color(std::vector<color_and_key> const& wishes, int color) {
  std::vector<int> chosen;
  for (std::size_t rank = 0; rank < wishes.size(); ++rank) {
    if (wishes[rank].color != color) continue;
    auto at = chosen.size();
    while (at > 0 && wishes[static_cast<std::size_t>(chosen[at - 1])].key > wishes[rank].key) --at;
    chosen.insert(chosen.begin() + static_cast<std::ptrdiff_t>(at), static_cast<int>(rank));
  }
  return chosen;
}

}  // namespace trireme::comm::detail
