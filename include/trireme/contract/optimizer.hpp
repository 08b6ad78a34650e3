#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>

#include "trireme/contract/numerics.hpp"

namespace trireme {

/// One stretch of one parameter that this rank updates.
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
};

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

/// Turns gradients into new values, element by element, so that it works on any shard.
///
/// Requires  `moment_names` (one name a state tensor), `rate_at(step)` with step counted from 0, `clip` (the largest
///           global norm, 0 = no clipping; the trainer applies it), `update(segment, step)`.
/// Not asked  state of its own: the moments belong to the trainer, which shards, saves and restores them.
template <class O, class Env>
concept optimizer = has_moment_names<O> && has_rate_at<O> && has_clip<O> && has_update<O, Env>;

}  // namespace trireme
