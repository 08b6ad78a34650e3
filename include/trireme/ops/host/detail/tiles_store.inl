#pragma once

#include <cstdint>

#include "trireme/ops/host/detail/product_types.hpp"
#include "trireme/ops/host/simd.hpp"

// Stores the sums of tiles. Included by product_kernels.hpp, after the epilogues of AVX-512.
#if TRIREME_X86
TRIREME_TARGET_AVX512_BF16_BEGIN
namespace trireme::ops::detail::avx512_bf16 {

using avx512::lanes;

/// Stores 32 neighbours of a row. Rounded by the instruction, which treats denormals as zero, as tiles do.
TRIREME_INLINE void store_neighbours(bfloat16* to, lanes first, lanes second) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v)));
}

/// store_sums for a whole panel of a tile's sums.
template <class T>
inline void store_tiled(store_job<T> const& job) {
  if (job.columns != 2 * lanes::width) return avx512::store_sums<T>(job);
  store_rule<T> const rule = *job.rule;
  for (std::int64_t i = 0; i < job.rows; ++i) {
    float const* const sums = job.sums + i * job.sums_row;
    auto const at = (job.row + i) * rule.ld + job.column;
    lanes x[2] = {lanes::load(sums), lanes::load(sums + lanes::width)};
    TRIREME_UNROLL
    for (int v = 0; v < 2; ++v) {
      if (rule.bias != nullptr) x[v] = x[v] + lanes::load(rule.bias + job.column + v * lanes::width);
    }
    if (rule.keep != nullptr) store_neighbours(rule.keep + at, x[0], x[1]);
    TRIREME_UNROLL
    for (int v = 0; v < 2; ++v) {
      auto const here = at + v * lanes::width;
      if (rule.slope_at != nullptr) {
        x[v] = x[v] * activation_slope(lanes::load(rule.slope_at + here), rule.act);
      } else if (rule.act != activation::none) {
        x[v] = activated(x[v], rule.act);
      }
      if (rule.residual != nullptr) x[v] = x[v] + lanes::load(rule.residual + here);
      if (rule.accumulate) x[v] = x[v] + lanes::load(rule.y + here);
    }
    store_neighbours(rule.y + at, x[0], x[1]);
  }
}

/// The same for gradients of weights, which are added to.
inline void add_tiled(store_job<float> const& job) {
  float* to = job.rule->y + job.row * job.rule->ld + job.column;
  float const* sums = job.sums;
  __mmask16 const first = lanes::mask(static_cast<int>(job.columns));
  __mmask16 const second = lanes::mask(static_cast<int>(job.columns) - lanes::width);
  for (std::int64_t i = 0; i < job.rows; ++i, to += job.rule->ld, sums += job.sums_row) {
    __m512 const low = _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_maskz_loadu_ps(first, to));
    __m512 const high =
        _mm512_add_ps(_mm512_loadu_ps(sums + lanes::width), _mm512_maskz_loadu_ps(second, to + lanes::width));
    _mm512_mask_storeu_ps(to, first, low);
    _mm512_mask_storeu_ps(to + lanes::width, second, high);
  }
}

}  // namespace trireme::ops::detail::avx512_bf16
TRIREME_TARGET_END
#endif
