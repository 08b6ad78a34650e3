// Trireme 0.1.0: trireme/ops/sets/images.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 2515680d60fea31ac56a8c593398e2da14ba1560300cd38b08066f5977950ed1
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/ops/images.hpp"

// ---- trireme/ops/sets/images.hpp
#include <cstdint>

namespace trireme::ops {

// The set of images, in a struct images_on<Space> of its own: windows that move over images (height, width, channels),
// for nn::conv2d, max_pool2d, average_pool2d and patches. Each function is documented in ops/images.hpp.
//
//   patches(y, x, window, gap)              y: for each image `gap` rows of zeros, then the contents of each position
//                                           of the window
//   patches_backward(dx, dy, window, gap)   dx += dy, where it came from
//   add_positions(y, x, table, token, first)   y = x + table, row by row of a sample; the token in place of x's row 0
//   add_positions_backward(dx, dy, dtable, dtoken, first, accumulate)
//   max_pool(y, x, window)                  max_pool_backward(dx, dy, x, window)    dx += dy at the first maximum
//   average_pool(y, x, window)              average_pool_backward(dx, dy, window)   dx += dy / numbers of the window

namespace detail {

template <class K, class V>
concept moves_windows = requires(typename V::y y, typename V::x x, typename V::gradient g, window const& at) {
  K::patches(y, x, at, std::int64_t{});
  K::patches_backward(y, x, at, std::int64_t{});
  K::add_positions(y, x, x, x, std::int64_t{});
  K::add_positions_backward(y, x, g, g, std::int64_t{}, false);
  K::max_pool(y, x, at);
  K::max_pool_backward(y, x, x, at);
  K::average_pool(y, x, at);
  K::average_pool_backward(y, x, at);
};

}  // namespace detail

/// Whether a memory space has the kernels of layers of images, besides those of dense layers.
template <class Space, class Env>
concept images_kernels = dense_kernels<Space, Env> &&
    (complete_kernels<Space> || detail::moves_windows<images_on<Space>, detail::set_views<Space, Env>>);

}  // namespace trireme::ops
