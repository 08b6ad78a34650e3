// Trireme 0.1.0: trireme/comm/sum_order.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 0c584b6b2649f961ae73b2cc6077df45c98720efd00113143de2610f27776985
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/comm/sum_order.hpp
#include <cstdint>
#include <string_view>

namespace trireme::comm {

/// In which order a communicator adds up what ranks give: the `.order` of comm::mpi, whose default is `ranks`, and of
/// comm::nccl, whose default is `any`. Communicators without an `.order` always have that of the ranks.
enum class sum_order : std::uint8_t {
  /// Rank 0 first, then 1, ...: the same bits on every engine, every time.
  ranks,
  /// As the library below likes it, which may differ with the number of ranks, their places, the size and the library's
  /// version, within the usual bound of a sum of p terms: (p - 1) u times the sum of their magnitudes, where u is half
  /// the distance from 1 to the next number. All ranks have the same result. reduction::pairwise stays a fixed tree.
  any
};

[[nodiscard]] constexpr std::string_view name_of(sum_order order) noexcept {
  return order == sum_order::any ? "any" : "ranks";
}

}  // namespace trireme::comm
