// Trireme 0.1.0: trireme/ops/sets/latent.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 7a3a20579a06f2c6f0722a9e6c3eeb358abf6f3e0542dcee3cfe0e7c0c23251a
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/ops/latent_heads.hpp"

// ---- trireme/ops/sets/latent.hpp
namespace trireme::ops {

// The set of latent heads, in a struct latent_heads_on<Space> of its own (nn::latent_attention): queries, keys and
// values made of low-rank vectors. Each function is documented in ops/latent_heads.hpp.
//
//   arrange(qkv, queries, pairs, key, table, layout)
//   arrange_backward(dqueries, dpairs, dkey, dqkv, table, layout)

namespace detail {

template <class K, class V>
concept arranges_latent = requires(typename V::y y, typename V::x x, typename V::sums s, latent_layout const& layout) {
  K::arrange(y, x, x, x, s, layout);
  K::arrange_backward(y, y, y, x, s, layout);
};

}  // namespace detail

/// Whether a memory space has the kernels of nn::latent_attention: its own, and those of heads.
template <class Space, class Env>
concept latent_kernels = heads_kernels<Space, Env> &&
    (complete_kernels<Space> || detail::arranges_latent<latent_heads_on<Space>, detail::set_views<Space, Env>>);

}  // namespace trireme::ops
