#pragma once

#include <cstdint>

#include "trireme/contract/parameter.hpp"

namespace trireme {

/// Which pieces of its state a rank is asked for: each element on the one rank that answers for it (hashes,
/// checkpoints), or all that the rank keeps, copies of others' included (loading, comparing).
enum class state_scope { answered, kept };

/// Where a piece of state lies: elements from `first` on of the box of a tensor that `info` describes.
///
/// Every slot's run state shows what it keeps by two functions, which checkpoints, hashes and resharding use alone:
///   visit_state(state_scope, f)  calls f(std::string const& name, state_place, tensor_view<T, Space>) for each piece;
///                                the name is "what/tensor" ("first_moment/wte"), the same on every rank;
///   visit_numbers(f)             calls f(std::string_view name, T&) for numbers that are equal on all ranks, T
///                                std::int64_t, std::uint64_t or double.
/// Either may be left out by who has no such state. The order of the calls is the same in every call.
struct state_place {
  parameter_info const& info;
  std::int64_t first = 0;
  bool of_rank = false;  ///< each rank has numbers of its own: they are saved under its rank, and only as many ranks
                         ///< as there were can go on with them
};

}  // namespace trireme
