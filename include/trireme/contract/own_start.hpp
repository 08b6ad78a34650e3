#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "trireme/contract/model.hpp"

namespace trireme {

/// A staged model whose parameters begin with numbers that it brings, in place of what parameter_info::start says.
///
/// Requires  start(info, first, values): writes the numbers of elements [first, first + values.size()) of the part of a
///           tensor that `info` describes, for values of float and of double; start_hash(): one number for all of them,
///           which is compared between ranks.
/// Told      once, when a trainer is made: from then on the trainer's numbers are the only ones, and a trainer's
///           initialise() leaves them as they are.
template <class M>
concept has_own_start = staged_model<M> && requires(M const& model, parameter_info const& info) {
  model.start(info, std::int64_t{}, std::span<float>());
  model.start(info, std::int64_t{}, std::span<double>());
  { model.start_hash() } -> std::same_as<std::uint64_t>;
};

}  // namespace trireme
