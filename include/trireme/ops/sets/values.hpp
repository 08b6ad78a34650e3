#pragma once

#include "trireme/ops/sets/set.hpp"

namespace trireme::ops {

// Loops of a user's own functions, which the CPU runs: nn::elementwise, nn::loss::each, layers and optimizers of users.
// Only touchable memory can have them. The library itself calls named kernels.
//
//   each(y, x..., f)            y[i] = f(x[i]...), computed in the accumulate type and rounded once
//   with_values(f, views...)    f(span of the elements...)

namespace detail {

/// Stands for a user's function.
struct any_function {
  auto operator()(auto x) const { return x; }
};
template <class K, class V>
concept runs_functions = requires(typename V::y y, any_function const& f) {
  K::each(y, y, f);
  K::with_values(f, y);
};

}  // namespace detail

/// Whether a memory space runs functions of users on its elements.
template <class Space, class Env>
concept values_kernels = complete_kernels<Space> || detail::runs_functions<on<Space>, detail::set_views<Space, Env>>;

}  // namespace trireme::ops
