#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "trireme/contract/model.hpp"

namespace trireme {

/// A staged model that provides the initial values of its parameters, instead of parameter_info::start.
///
/// Requires  start(info, first, values): writes elements [first, first + values.size()) of the part of a tensor that
///           `info` describes, for values of float and of double; start_hash(): one number for all of them, which is
///           compared between ranks.
/// Called    once, when a trainer is made: from then on only the trainer's values count, and a trainer's initialise()
///           leaves them unchanged.
template <class M>
concept has_own_start = staged_model<M> && requires(M const& model, parameter_info const& info) {
  model.start(info, std::int64_t{}, std::span<float>());
  model.start(info, std::int64_t{}, std::span<double>());
  { model.start_hash() } -> std::same_as<std::uint64_t>;
};

}  // namespace trireme
