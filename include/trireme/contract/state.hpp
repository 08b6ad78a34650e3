#pragma once

#include <cstdint>

#include "trireme/contract/parameter.hpp"

namespace trireme {

/// Which elements of the state a rank visits: those that it owns, each element on exactly one rank (hashes,
/// checkpoints), or all that it keeps, including copies of other ranks' elements (loading, comparing).
enum class state_scope { owned, kept };

/// The position of a slice of state: elements from `first` on of the box of a tensor that `info` describes.
///
/// The run state of every slot gives access to its state by two functions, which checkpoints, hashes and resharding
/// use:
///   visit_state(state_scope, f)  calls f(std::string const& name, state_location, tensor_view<T, Space>) for each
///   slice;
///                                the name is "what/tensor" ("first_moment/wte"), the same on every rank;
///   visit_numbers(f)             calls f(std::string_view name, T&) for numbers that are equal on all ranks, T
///                                std::int64_t, std::uint64_t or double.
/// Either may be missing if there is no such state. The order of the calls is the same in every call.
struct state_location {
  parameter_info const& info;
  std::int64_t first = 0;
  bool of_rank = false;  ///< each rank has its own numbers, saved under its rank: a checkpoint of them
                         ///< can only be loaded on the same number of ranks, unless they are summands
  /// Above 0 if the ranks' own numbers are summands, of which only the sum counts (what error feedback has not sent
  /// yet): on another number of ranks each takes an equal part of the sum. A compressor says 1; the exchange, which
  /// knows over how many ranks a gradient is summed, says how many summands there are.
  std::int64_t summands = 0;
  /// At least 0 where ranks take steps apart: these are the numbers of that learner, saved under its number. Its ranks
  /// own and keep them as those of a run; a checkpoint can be loaded for the same number of learners.
  std::int64_t learner = -1;
};

}  // namespace trireme
