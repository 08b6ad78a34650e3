#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "trireme/contract/numerics.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/arena.hpp"

namespace trireme {

/// A slice of one parameter that this rank updates.
///
/// Shapes   value, each of `moments` and each of `outputs` (n). The gradient is a sum of terms of (n) each.
/// Numerics the new value is rounded once when it is converted into `outputs`.
template <class Env>
struct update_segment {
  using space = typename Env::space;
  tensor_view<typename Env::master, space> value;
  std::span<tensor_view<typename Env::master, space> const> moments;  ///< as many as the optimizer names
  gradient_terms<typename Env::gradient, space> gradient;             ///< scale holds the clipping factor
  std::span<tensor_view<typename Env::param, space> const> outputs;   ///< where layers read the value
  bool decays = true;
  parameter_info const* info = nullptr;  ///< of the parameter; null if unknown
  std::int64_t updates = -1;             ///< updates before this one; -1: the number of steps
};

/// One whole tensor that this rank updates.
///
/// Shapes   value, gradient and each of `outputs` as in `info`; each of `moments` as moment_shape of the optimizer (may
///          have no elements).
/// Numerics the gradient is `scale` times the view's elements: the factor clips.
template <class Env>
struct tensor_update {
  using space = typename Env::space;
  using master = typename Env::master;
  parameter_info const& info;
  tensor_view<master, space> value;
  std::span<tensor_view<master, space> const> moments;  ///< as many as the optimizer names
  tensor_view<typename Env::gradient const, space> gradient;
  double scale = 1;
  std::span<tensor_view<typename Env::param, space> const> outputs;  ///< where layers read the value
  arena<space>& scratch;                                             ///< released afterwards
  std::int64_t updates = -1;                                         ///< as in update_segment
};

/// The number of updates of a parameter including this one, for the bias correction of moving averages. Skipped steps
/// count in `step`, which schedules use, but not here.
template <class Update>
[[nodiscard]] constexpr double count_of_updates(Update const& update, std::int64_t step) noexcept {
  return static_cast<double>((update.updates < 0 ? step : update.updates) + 1);
}

template <class O>
concept has_moment_names = requires {
  { O::moment_names.size() } -> std::convertible_to<std::size_t>;
};
template <class O>
concept has_rate_at = requires(O const& optimizer, std::int64_t step) {
  { optimizer.rate_at(step) } -> std::convertible_to<double>;
};
template <class O>
concept has_clip = requires(O const& optimizer) {
  { optimizer.clip } -> std::convertible_to<double>;
};
template <class O, class Env>
concept has_update = requires(O const& optimizer, update_segment<Env> const& segment, std::int64_t step) {
  optimizer.update(segment, step);
};

template <class O>
concept declares_whole_tensors = requires(O const& optimizer) {
  { optimizer.whole_tensors } -> std::convertible_to<bool>;
};
template <class O>
concept has_moment_shape = requires(O const& optimizer, parameter_info const& info) {
  { optimizer.moment_shape(std::size_t{}, info) } -> std::convertible_to<shape>;
};
template <class O, class Env>
concept has_tensor_update = requires(O const& optimizer, tensor_update<Env> const& tensor, std::int64_t step) {
  optimizer.update(tensor, step);
};

/// Computes new values from gradients, element by element, so it works on any shard.
///
/// Requires  `moment_names` (one name a state tensor), `rate_at(step)` with step counted from 0, `clip` (the largest
///           global norm, 0 = no clipping; the trainer applies it), `update(segment, step)`. `step` is that of the run,
///           including skipped ones, so that a schedule ends with it; count_of_updates() excludes skipped ones.
/// Not required  state of its own: the moments belong to the trainer, which shards, saves and restores them.
template <class O, class Env>
concept element_optimizer = has_moment_names<O> && has_rate_at<O> && has_clip<O> && has_update<O, Env>;

/// Computes new values from gradients, one whole tensor after the other. No rank may then have only a part of a tensor.
///
/// Requires  `whole_tensors` (true), `moment_names`, `rate_at` and `clip` as an element_optimizer;
///           `moment_shape(which, parameter_info)`, the extents of each moment of a tensor (one of no elements: {0});
///           `update(tensor, step)`, which writes the value, the moments and the outputs.
/// Not required  state of its own, as above: moments are zero before the first step.
template <class O, class Env>
concept whole_tensor_optimizer = declares_whole_tensors<O> && has_moment_names<O> && has_rate_at<O> && has_clip<O> &&
    has_moment_shape<O> && has_tensor_update<O, Env>;

template <class O, class Env>
concept optimizer = element_optimizer<O, Env> || whole_tensor_optimizer<O, Env>;

/// Whether an optimizer needs whole tensors.
template <class O>
[[nodiscard]] constexpr bool wants_whole_tensors(O const& optimizer) noexcept {
  if constexpr (declares_whole_tensors<O>) {
    return optimizer.whole_tensors;
  } else {
    return false;
  }
}

/// The momentum that an optimizer applies to gradients: its `momentum`, or else `beta1`; that of `base` if it has a
/// `base`; otherwise 0.
template <class O>
[[nodiscard]] double momentum_of([[maybe_unused]] O const& optimizer) {
  if constexpr (requires { static_cast<double>(optimizer.momentum); }) {
    return static_cast<double>(optimizer.momentum);
  } else if constexpr (requires { static_cast<double>(optimizer.beta1); }) {
    return static_cast<double>(optimizer.beta1);
  } else if constexpr (requires { optimizer.base; }) {
    return momentum_of(optimizer.base);
  } else {
    return 0;
  }
}

/// The requirements of an optimizer or a strategy on the memory of parameters and gradients, before that is allocated.
struct bucket_requirements {
  bool whole_tensors = false;  ///< one rank updates all of a tensor: no slice of a bucket splits one
  std::function<bool(parameter_info const&)> frozen;  ///< which parameters are never updated; empty: none

  /// No bucket holds both tensors of which this rank has a part, and whole ones, of which other ranks of its replica
  /// have copies: what a compressor makes of a copy must not depend on the parts beside it.
  bool copies_apart = false;
  int fragments = 1;  ///< parts of the model that are exchanged in different steps: no bucket holds tensors of two

  [[nodiscard]] bool freezes(parameter_info const& info) const { return frozen && frozen(info); }
};

/// An optimizer that never updates some parameters, those with `freezes(parameter_info)`.
template <class O>
[[nodiscard]] bucket_requirements bucket_requirements_of(O const& optimizer) {
  bucket_requirements requirements;
  requirements.whole_tensors = wants_whole_tensors(optimizer);
  if constexpr (requires(parameter_info const& info) { optimizer.freezes(info); }) {
    requirements.frozen = [optimizer](parameter_info const& info) { return optimizer.freezes(info); };
  }
  return requirements;
}

}  // namespace trireme
