#pragma once

#include <cstdint>

#include "trireme/ops/codes.hpp"
#include "trireme/ops/sets/exchange.hpp"

namespace trireme::ops {

// The sets of compressors.
//
//   select_largest(x, indices, values)     the k elements of largest magnitude, k = indices.size(), indices ascending;
//                                          of equal magnitudes the smaller index is taken
//   scatter(y, indices, values, add)       y[indices[i]] = or += values[i], in order
//   small_product(y, a, transposed, b, transposed)   y = a b, one of whose three extents is small; each element summed
//                                          in order, the same bits on every machine
//   product_of_sum(y, x, z, weight, b)     x += weight z, then y = x b
//   rest_and_product(rest, x, p, own, all, factor)   rest = factor (x - p own^T), then x = p all^T
//   orthonormalise(x)                      makes the columns of x (n, r) orthonormal, starting with the first
//   encode_codes(scales, codes, x, form, rounding)   numbers of few bits, with a scale a block (ops/codes.hpp)
//   decode_codes(y, scales, codes, form, add)        y = or += those numbers
//   gather_drawn(values, x, drawn, weighted)         one random element of each of values.size() strata of x
//   scatter_drawn(y, values, drawn)                  writes them to the same elements of y
//   select_sampled(x, samples, indices, values)      like select_largest, with a threshold from a sample of x

namespace detail {

template <class Space, class Env>
struct codec_views {
  using y = tensor_view<typename Env::gradient, Space>;
  using x = tensor_view<typename Env::gradient const, Space>;
  using indices = tensor_view<std::int32_t, Space>;
  using chosen = tensor_view<std::int32_t const, Space>;
  using scales = tensor_view<float, Space>;
  using codes = tensor_view<std::uint8_t, Space>;
  using wire = tensor_view<typename Env::reduce, Space>;
};
template <class K, class V>
concept selects = requires(typename V::y y, typename V::x x, typename V::indices indices, typename V::chosen chosen) {
  K::select_largest(y, indices, y);
  K::scatter(y, chosen, x, true);
};
template <class K, class V>
concept multiplies_small = requires(typename V::y y, typename V::x x) {
  K::small_product(y, x, transposed::no, x, transposed::yes);
  K::product_of_sum(y, y, x, 1.0, x);
  K::rest_and_product(y, y, x, x, x, 1.0);
  K::orthonormalise(y);
};
template <class K, class V>
concept codes_numbers = requires(typename V::y y, typename V::scales scales, typename V::codes codes,
                                 code_form const& form, random_stream const& random) {
  K::encode_codes(scales, codes, y, form, &random);
  K::decode_codes(y, scales, codes, form, true);
};
template <class K, class V>
concept draws_elements = requires(typename V::y y, typename V::wire wire, random_stream const& random) {
  K::gather_drawn(wire, y, random, true);
  K::scatter_drawn(y, wire, random);
};
template <class K, class V>
concept selects_by_sample = requires(typename V::y y, typename V::x x, typename V::indices indices,
                                     typename V::chosen chosen) {
  K::select_sampled(y, std::int64_t{}, indices, y);
  K::scatter(y, chosen, x, true);
};

}  // namespace detail

/// Whether a memory space has the kernels of compression::top_k.
template <class Space, class Env>
concept selection_kernels = complete_kernels<Space> || detail::selects<on<Space>, detail::codec_views<Space, Env>>;
/// Whether a memory space has the kernels of compression::power_sgd.
template <class Space, class Env>
concept low_rank_kernels =
    complete_kernels<Space> || detail::multiplies_small<on<Space>, detail::codec_views<Space, Env>>;
/// Whether a memory space has the kernels of compression::quantise and sign.
template <class Space, class Env>
concept codes_kernels = complete_kernels<Space> || detail::codes_numbers<on<Space>, detail::codec_views<Space, Env>>;
/// Whether a memory space has the kernels of compression::random_k.
template <class Space, class Env>
concept drawing_kernels = complete_kernels<Space> || detail::draws_elements<on<Space>, detail::codec_views<Space, Env>>;
/// Whether a memory space has the kernels of compression::top_k_sampled.
template <class Space, class Env>
concept sampled_selection_kernels =
    complete_kernels<Space> || detail::selects_by_sample<on<Space>, detail::codec_views<Space, Env>>;

}  // namespace trireme::ops
