#pragma once

#include "trireme/core/arena.hpp"
#include "trireme/ops/sets/dense.hpp"

namespace trireme::ops {

// The set of blocks: attention of some queries over some keys, merged block by block (parallel::context).
//
//   attend_block(y, lse, qkv, pairs, shape, block, scratch, dropout)
//       updates y and lse, which start as 0 and minus infinity, to include these keys
//   attend_block_backward(dqueries, dpairs, dy, y, lse, qkv, pairs, shape, block, scratch, dropout)
//       adds the gradients between these queries and keys
//
// Shapes   with T the rows of a sample here: qkv (B*T, 3C); pairs and dpairs (B*T, 2C): keys and values; y, dy and
//          dqueries (B*T, C); lse (B, H, T). Of the accumulate type are lse, dqueries, dpairs, and the y of
//          attend_block.
// Numerics sums in the accumulate type; blocks in any order give what one call of attention gives.

namespace detail {

template <class K, class V, class Space>
concept attends_blocks = requires(typename V::y y, typename V::x x, typename V::sums s, attention_shape const& shape,
                                  attention_block const& at, arena<Space>& scratch,
                                  dropout_site_in<Space> const& drop) {
  K::attend_block(s, s, y, x, shape, at, scratch, drop);
  K::attend_block_backward(s, s, y, x, s, x, x, shape, at, scratch, drop);
};

}  // namespace detail

/// Whether a memory space has the kernels of attention over a context group, besides those of dense layers.
template <class Space, class Env>
concept blocks_kernels = complete_kernels<Space> ||
    (dense_kernels<Space, Env>&& detail::attends_blocks<on<Space>, detail::set_views<Space, Env>, Space>);

}  // namespace trireme::ops
