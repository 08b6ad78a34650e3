#pragma once

#include "trireme/ops/host/normalisation.hpp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/normalisation.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/normalisation.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/normalisation.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

template <class T, class A>
void layer_norm_rows(T* y, A* mean, A* rstd, T const* x, T const* gain, T const* bias, std::int64_t rows,
                     std::int64_t channels, double epsilon) {
  TRIREME_DISPATCH(fits_float<T>, layer_norm(y, mean, rstd, x, gain, bias, rows, channels, epsilon));
}
template <class T, class A>
void layer_norm_backward_rows(T* dx, A* dgain, A* dbias, T const* dy, T const* x, A const* mean, A const* rstd,
                              T const* gain, std::int64_t rows, std::int64_t channels, bool accumulate) {
  TRIREME_DISPATCH(fits_float<T>,
                   layer_norm_backward(dx, dgain, dbias, dy, x, mean, rstd, gain, rows, channels, accumulate));
}
template <class T, class A>
void rms_norm_rows(T* y, A* rstd, T const* x, T const* gain, std::int64_t rows, std::int64_t channels, double epsilon) {
  TRIREME_DISPATCH(fits_float<T>, rms_norm(y, rstd, x, gain, rows, channels, epsilon));
}
template <class T, class A>
void rms_norm_backward_rows(T* dx, A* dgain, T const* dy, T const* x, A const* rstd, T const* gain, std::int64_t rows,
                            std::int64_t channels, bool accumulate) {
  TRIREME_DISPATCH(fits_float<T>, rms_norm_backward(dx, dgain, dy, x, rstd, gain, rows, channels, accumulate));
}

}  // namespace trireme::ops::detail
