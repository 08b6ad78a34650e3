// Losses of one row; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T>
inline double cross_entropy_row(T* logits, std::int64_t classes, std::int64_t target, double weight, bool gradient) {
  using F = lanes_for<T>;
  using real = typename F::real;
  F top = F::all(-std::numeric_limits<real>::infinity());
  // max() gives its second operand if one is NaN, so a NaN among the logits ends in the loss through the sum below.
  TRIREME_FOR_LANES(F, classes, i, count, { top = max(top, first(count, F::load(logits + i, count), top)); })
  real const peak = largest(top);
  F const shift = F::all(peak);
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count,
                    { total = total + first(count, exp(F::load(logits + i, count) - shift), F::all(0)); })
  real const mass = sum(total);
  double const loss =
      std::log(static_cast<double>(mass)) + static_cast<double>(peak) - static_cast<double>(logits[target]);
  if (!gradient) return loss;
  real const chosen = static_cast<real>(logits[target]);
  F const factor = F::all(static_cast<real>(weight / static_cast<double>(mass)));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor).store(logits + i, count); })
  F::all(static_cast<real>(weight) * (std::exp(chosen - peak) / mass - real(1))).store(logits + target, 1);
  return loss;
}

// The parts of cross_entropy_row for a row whose classes lie on several ranks.
template <class T>
inline double row_peak(T const* logits, std::int64_t classes) {
  using F = lanes_for<T>;
  F top = F::all(-std::numeric_limits<typename F::real>::infinity());
  TRIREME_FOR_LANES(F, classes, i, count, { top = max(top, first(count, F::load(logits + i, count), top)); })
  return static_cast<double>(largest(top));
}
template <class T>
inline double row_mass(T const* logits, std::int64_t classes, double peak) {
  using F = lanes_for<T>;
  F const shift = F::all(static_cast<typename F::real>(peak));
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count,
                    { total = total + first(count, exp(F::load(logits + i, count) - shift), F::all(0)); })
  return static_cast<double>(sum(total));
}
// target is outside of [0, classes) if it lies elsewhere.
template <class T>
inline void cross_entropy_slope(T* logits, std::int64_t classes, std::int64_t target, double weight, double peak,
                                double mass) {
  using F = lanes_for<T>;
  using real = typename F::real;
  real const chosen = target >= 0 && target < classes ? static_cast<real>(logits[target]) : real(0);
  F const shift = F::all(static_cast<real>(peak));
  F const factor = F::all(static_cast<real>(weight / mass));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor).store(logits + i, count); })
  if (target < 0 || target >= classes) return;
  F::all(static_cast<real>(weight * (std::exp(static_cast<double>(chosen) - peak) / mass - 1)))
      .store(logits + target, 1);
}

template <class T>
inline double squared_error_row(T* dy, T const* y, float const* target, std::int64_t columns, double weight) {
  using F = lanes_for<T>;
  using real = typename F::real;
  F const slope = F::all(static_cast<real>(2 * weight / static_cast<double>(columns)));
  F total = F::all(0);
  TRIREME_FOR_LANES(F, columns, i, count, {
    F const distance = F::load(y + i, count) - F::load(target + i, count);  // 0 beyond count
    total = fma(distance, distance, total);
    if (dy != nullptr) (slope * distance).store(dy + i, count);
  })
  return static_cast<double>(sum(total)) / static_cast<double>(columns);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
