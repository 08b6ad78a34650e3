// Trireme 0.1.0: trireme/comm/sum_order.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 471b71f1b4224af32ca85019514290e15f1608108cac63f9f17a4457b2a13f6e
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/comm/sum_order.hpp
#include <cstdint>

namespace trireme::comm {

/// In which order a communicator adds up what ranks give: the `.order` of comm::mpi, whose default is `ranks`, and of
/// comm::nccl, whose default is `any`. Communicators without an `.order` always have that of the ranks; only
/// comm::hierarchical adds up node by node.
enum class sum_order : std::uint8_t {
  /// Rank 0 first, then 1, ...: the same bits on every engine, every time.
  ranks,
  /// The order of MPI or NCCL, which may depend on the number of ranks, their places, the size and the version of that
  /// library. The error keeps the usual bound of a sum of p terms: (p - 1) u times the sum of their magnitudes, where u
  /// is half the distance from 1 to the next number. All ranks have the same result. reduction::pairwise stays a fixed
  /// tree.
  any
};

}  // namespace trireme::comm
