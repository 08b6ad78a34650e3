#pragma once

#include <cmath>

#include "trireme/ops/host/heads.hpp"
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

template <class A>
void fill_rotations(A* table, std::int64_t positions, std::int64_t first, std::int64_t width, double base) {
  auto const half = width / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    auto const each = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
    for (std::int64_t row = 0; row < positions; ++row) {
      auto const angle = static_cast<double>(first + row) * each;
      table[row * width + i] = static_cast<A>(std::cos(angle));
      table[row * width + half + i] = static_cast<A>(std::sin(angle));
    }
  }
}
TRIREME_BODY void rotation_table(float* table, std::int64_t positions, std::int64_t first, std::int64_t width,
                                 double base) {
  fill_rotations(table, positions, first, width, base);
}
TRIREME_BODY void rotation_table(double* table, std::int64_t positions, std::int64_t first, std::int64_t width,
                                 double base) {
  fill_rotations(table, positions, first, width, base);
}
template <class T, class A>
void arrange_rows(T* qkv, T const* x, A const* table, head_layout const& how, std::int64_t rows) {
  TRIREME_DISPATCH(fits_float<T>, arrange(qkv, x, table, how, rows));
}
template <class T, class A>
void arrange_backward_rows(T* dx, T const* dqkv, A const* table, head_layout const& how, std::int64_t rows) {
  TRIREME_DISPATCH(fits_float<T>, arrange_backward(dx, dqkv, table, how, rows));
}

}  // namespace trireme::ops::detail
