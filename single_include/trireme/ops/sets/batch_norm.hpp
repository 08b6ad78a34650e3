// Trireme 0.1.0: trireme/ops/sets/batch_norm.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 367a19452670d94ab2f27c5f2b6b77d82c71b3261555ecf93930cd9148414e92
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/ops/batch_norm.hpp"

// ---- trireme/ops/sets/batch_norm.hpp
#include <cstdint>

namespace trireme::ops {

// The set of batch normalisation, in a struct batch_norm_on<Space> of its own (nn::batch_norm). Each function is
// documented in ops/batch_norm.hpp. x, y (rows, channels), everything else (channels), in the accumulate type.
//
//   column_sums(sum, x)                          column_squares(sum, x, mean)
//   inverse_deviation(rstd, variance, epsilon)   rstd = 1 / sqrt(variance + epsilon)
//   column_gradients(of_dy, of_both, dy, x, mean, rstd)
//   normalise(y, x, mean, rstd, gain, bias)
//   normalise_backward(dx, dy, x, mean, rstd, gain, of_dy, of_both, n, accumulate)

namespace detail {

template <class K, class V>
concept normalises_columns = requires(typename V::y y, typename V::x x, typename V::sums s) {
  K::column_sums(s, y);
  K::column_squares(s, y, s);
  K::column_gradients(s, s, y, x, s, s);
  K::inverse_deviation(s, s, 1e-5);
  K::normalise(y, x, s, s, x, x);
  K::normalise_backward(y, x, x, s, s, x, s, s, std::int64_t{}, false);
};

}  // namespace detail

/// Whether a memory space has the kernels of nn::batch_norm: its own, and those of dense layers.
template <class Space, class Env>
concept batch_norm_kernels = dense_kernels<Space, Env> &&
    (complete_kernels<Space> || detail::normalises_columns<batch_norm_on<Space>, detail::set_views<Space, Env>>);

}  // namespace trireme::ops
