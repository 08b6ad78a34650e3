#pragma once

#include <cstdint>

#include "trireme/ops/sets/exchange.hpp"

namespace trireme::ops {

// The sets of compressors.
//
//   select_largest(x, indices, values)     the k elements of largest magnitude, k = indices.size(), indices ascending;
//                                          of equal magnitudes the smaller index is taken
//   scatter(y, indices, values, add)       y[indices[i]] = or += values[i], in order
//   small_product(y, a, transposed, b, transposed)   y = a b, one of whose three extents is small; each element summed
//                                          in order, the same bits on every machine
//   orthonormalise(x)                      makes the columns of x (n, r) orthonormal, starting with the first

namespace detail {

template <class Space, class Env>
struct codec_views {
  using y = tensor_view<typename Env::gradient, Space>;
  using x = tensor_view<typename Env::gradient const, Space>;
  using indices = tensor_view<std::int32_t, Space>;
  using chosen = tensor_view<std::int32_t const, Space>;
};
template <class K, class V>
concept selects = requires(typename V::y y, typename V::x x, typename V::indices indices, typename V::chosen chosen) {
  K::select_largest(y, indices, y);
  K::scatter(y, chosen, x, true);
};
template <class K, class V>
concept multiplies_small = requires(typename V::y y, typename V::x x) {
  K::small_product(y, x, transposed::no, x, transposed::yes);
  K::orthonormalise(y);
};

}  // namespace detail

/// Whether a memory space has the kernels of compression::top_k.
template <class Space, class Env>
concept selection_kernels = complete_kernels<Space> || detail::selects<on<Space>, detail::codec_views<Space, Env>>;
/// Whether a memory space has the kernels of compression::power_sgd.
template <class Space, class Env>
concept low_rank_kernels =
    complete_kernels<Space> || detail::multiplies_small<on<Space>, detail::codec_views<Space, Env>>;

}  // namespace trireme::ops
