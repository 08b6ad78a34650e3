#pragma once

#include "trireme/ops/host/losses.hpp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/losses.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/losses.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/losses.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

template <class T>
double cross_entropy_row(T* logits, std::int64_t classes, std::int64_t target, double weight, bool gradient,
                         cross_entropy_terms const& terms) {
  TRIREME_DISPATCH(fits_float<T>, cross_entropy_row(logits, classes, target, weight, gradient, terms));
}
template <class T>
double target_logit(T const* logits, std::int64_t classes, std::int64_t target, std::int64_t whole, double smoothing) {
  TRIREME_DISPATCH(fits_float<T>, target_logit(logits, classes, target, whole, smoothing));
}
template <class T>
double row_peak(T const* logits, std::int64_t classes) {
  TRIREME_DISPATCH(fits_float<T>, row_peak(logits, classes));
}
template <class T>
double row_mass(T const* logits, std::int64_t classes, double peak) {
  TRIREME_DISPATCH(fits_float<T>, row_mass(logits, classes, peak));
}
template <class T>
void cross_entropy_slope(T* logits, std::int64_t classes, std::int64_t target, double weight, double peak, double mass,
                         cross_entropy_terms const& terms, std::int64_t whole) {
  TRIREME_DISPATCH(fits_float<T>, cross_entropy_slope(logits, classes, target, weight, peak, mass, terms, whole));
}
template <class T, class Target>
double squared_error_row(T* dy, T const* y, Target const* target, std::int64_t columns, double weight) {
  TRIREME_DISPATCH(fits_float<T>, squared_error_row(dy, y, target, columns, weight));
}

}  // namespace trireme::ops::detail
