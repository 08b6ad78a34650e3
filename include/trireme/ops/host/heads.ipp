#pragma once

#include <cmath>

#include "trireme/ops/host/heads.hpp"
#include "trireme/ops/host/normalisation.ipp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/heads.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/heads.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/heads.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

// The divisor of a frequency: 1, the factor, or in between.
inline double slower(double frequency, rotary_scaling const& how) {
  if (how.original == 0) return how.factor;
  auto const turns = static_cast<double>(how.original) * frequency / (2 * std::acos(-1.0));
  auto const kept = turns < how.low ? 0.0 : turns > how.high ? 1.0 : (turns - how.low) / (how.high - how.low);
  return 1 / (kept + (1 - kept) / how.factor);
}
template <class A>
void fill_rotations(A* table, std::int64_t positions, std::int64_t first, std::int64_t width, double base,
                    rotary_scaling const& scaling) {
  auto const half = width / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    auto each = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
    each /= slower(each, scaling);
    for (std::int64_t row = 0; row < positions; ++row) {
      auto const angle = static_cast<double>(first + row) * each;
      table[row * width + i] = static_cast<A>(std::cos(angle));
      table[row * width + half + i] = static_cast<A>(std::sin(angle));
    }
  }
}
TRIREME_BODY void rotation_table(float* table, std::int64_t positions, std::int64_t first, std::int64_t width,
                                 double base, rotary_scaling const& scaling) {
  fill_rotations(table, positions, first, width, base, scaling);
}
TRIREME_BODY void rotation_table(double* table, std::int64_t positions, std::int64_t first, std::int64_t width,
                                 double base, rotary_scaling const& scaling) {
  fill_rotations(table, positions, first, width, base, scaling);
}
template <class T, class A>
void arrange_rows(T* qkv, T const* x, A const* table, head_layout const& how, std::int64_t rows) {
  TRIREME_DISPATCH(fits_float<T>, arrange(qkv, x, table, how, rows));
}
template <class T, class A>
void arrange_backward_rows(T* dx, T const* dqkv, A const* table, head_layout const& how, std::int64_t rows) {
  TRIREME_DISPATCH(fits_float<T>, arrange_backward(dx, dqkv, table, how, rows));
}
template <class T, class A>
void normalise_head_rows(T* y, A* rstd, T const* x, T const* query_gain, T const* key_gain, head_layout const& how,
                         std::int64_t rows, double epsilon) {
  TRIREME_DISPATCH(fits_float<T>, normalise_heads(y, rstd, x, query_gain, key_gain, how, rows, epsilon));
}
template <class T, class A>
void normalise_backward_head_rows(T* dx, A* dquery_gain, A* dkey_gain, T const* dy, T const* x, A const* rstd,
                                  T const* query_gain, T const* key_gain, head_layout const& how, std::int64_t rows) {
  TRIREME_DISPATCH(fits_float<T>,
                   normalise_heads_backward(dx, dquery_gain, dkey_gain, dy, x, rstd, query_gain, key_gain, how, rows));
}

}  // namespace trireme::ops::detail
