#pragma once

#include <span>

#include "trireme/ops/sets/set.hpp"

namespace trireme::ops {

// The set of updates, one kernel for each optimizer that works on elements; each optimizer needs its own only. One call
// is one pass over memory: the terms of a gradient are summed when they are read, and the new value is rounded and
// written to every output.
//
//   adamw(value, first, second, gradient, outputs, adamw_numbers)  one step of AdamW
//   sgd(value, velocity, gradient, outputs, sgd_numbers)           one step of SGD; without momentum velocity is empty
//   step_against_sign(value, measured, by)   value -= by * (-1, 0 or 1: the sign of what a layer measured), for
//                                                              parameters that follow signs (nn::experts with scores)
//
// Shapes   all views of one call (n). The update's gradient is the sum of gradient_terms, times their scale.
// Bytes    adamw of fp32 with one term and no other output reads 16 and writes 12 bytes an element.
// Numerics in the accumulate type of the master values; an element's result does not depend on where a slice begins.

namespace detail {

template <class Space, class Env>
struct update_views {
  using value = tensor_view<typename Env::master, Space>;
  using terms = gradient_terms<typename Env::gradient, Space>;
  using outputs = std::span<tensor_view<typename Env::param, Space> const>;
};
template <class K, class V>
concept updates_adamw = requires(typename V::value value, typename V::terms const& gradient,
                                 typename V::outputs outputs, adamw_numbers const& numbers) {
  K::adamw(value, value, value, gradient, outputs, numbers);
};
template <class K, class V>
concept updates_sgd = requires(typename V::value value, typename V::terms const& gradient, typename V::outputs outputs,
                               sgd_numbers const& numbers) {
  K::sgd(value, value, gradient, outputs, numbers);
};

}  // namespace detail

/// Whether a memory space has the kernel of optim::adamw.
template <class Space, class Env>
concept adamw_kernels = complete_kernels<Space> || detail::updates_adamw<on<Space>, detail::update_views<Space, Env>>;
/// Whether a memory space has the kernel of optim::sgd.
template <class Space, class Env>
concept sgd_kernels = complete_kernels<Space> || detail::updates_sgd<on<Space>, detail::update_views<Space, Env>>;
/// Whether a memory space has the kernels of all optimizers that work on elements.
template <class Space, class Env>
concept update_kernels = adamw_kernels<Space, Env> && sgd_kernels<Space, Env>;

}  // namespace trireme::ops
