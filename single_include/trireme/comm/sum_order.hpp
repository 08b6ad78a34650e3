// Trireme 0.1.0: trireme/comm/sum_order.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 24a6a24a3bde96088899793fa3c6d939ad25d461a30fad4449b9e6c2d3a6e2cb
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/comm/sum_order.hpp
#include <cstdint>

namespace trireme::comm {

/// The order in which a communicator sums the values of the ranks: the `.order` of comm::mpi (default `ranks`) and of
/// comm::nccl (default `any`). Communicators without an `.order` always sum in rank order.
enum class sum_order : std::uint8_t {
  /// Rank 0 first, then 1, ...: the same bits on every engine, every time.
  ranks,
  /// The order of MPI or NCCL, which may depend on the number of ranks, their placement, the size and the version of
  /// that library. The error stays within the usual bound of a sum of p terms: (p - 1) u times the sum of their
  /// magnitudes, where u is half the distance from 1 to the next number. All ranks have the same result.
  /// reduction::pairwise stays a fixed tree.
  any
};

}  // namespace trireme::comm
