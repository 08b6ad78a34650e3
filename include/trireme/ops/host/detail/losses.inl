// Losses of one row; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T>
inline double row_total(T const* logits, std::int64_t classes) {
  using F = lanes_for<T>;
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count, { total = total + F::load(logits + i, count); })  // 0 beyond count
  return static_cast<double>(sum(total));
}

// The number that a cross entropy subtracts from the log of the mass: the target's logit, or with smoothing a weighted
// mean of it and all logits. If the target is on another rank, `target` is outside of [0, classes) and adds nothing;
// `whole` is the number of all classes.
template <class T>
inline double target_logit(T const* logits, std::int64_t classes, std::int64_t target, std::int64_t whole,
                           double smoothing) {
  double const own = target >= 0 && target < classes ? static_cast<double>(logits[target]) : 0.0;
  if (exactly_equal(smoothing, 0)) return own;
  return (1 - smoothing) * own + smoothing / static_cast<double>(whole) * row_total(logits, classes);
}

// logits = weight * the gradient of: log mass - target_logit + z (log mass)^2, where log_mass is the log of the sum of
// all exponentials and mass the sum of exponentials relative to the peak.
template <class T>
inline void cross_entropy_slope(T* logits, std::int64_t classes, std::int64_t target, double weight, double peak,
                                double mass, cross_entropy_terms const& terms, std::int64_t whole) {
  using F = lanes_for<T>;
  using real = typename F::real;
  bool const here = target >= 0 && target < classes;
  real const chosen = here ? static_cast<real>(logits[target]) : real(0);
  double const steep = 1 + 2 * terms.z * (std::log(mass) + peak);
  double const even = terms.smoothing / static_cast<double>(whole);
  F const shift = F::all(static_cast<real>(peak));
  F const factor = F::all(static_cast<real>(weight / mass * steep));
  F const less = F::all(static_cast<real>(weight * even));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor - less).store(logits + i, count); })
  if (!here) return;
  double const share = std::exp(static_cast<double>(chosen) - peak) / mass;
  F::all(static_cast<real>(weight * (share * steep - even - (1 - terms.smoothing)))).store(logits + target, 1);
}

template <class T>
inline double cross_entropy_row(T* logits, std::int64_t classes, std::int64_t target, double weight, bool gradient,
                                cross_entropy_terms const& terms) {
  using F = lanes_for<T>;
  using real = typename F::real;
  F top = F::all(-std::numeric_limits<real>::infinity());
  // max() returns its second operand if one is NaN, so a NaN among the logits reaches the loss through the sum below.
  TRIREME_FOR_LANES(F, classes, i, count, { top = max(top, first(count, F::load(logits + i, count), top)); })
  real const peak = largest(top);
  F const shift = F::all(peak);
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count,
                    { total = total + first(count, exp(F::load(logits + i, count) - shift), F::all(0)); })
  real const mass = sum(total);
  double const log_mass = std::log(static_cast<double>(mass)) + static_cast<double>(peak);
  double const loss =
      log_mass - target_logit(logits, classes, target, classes, terms.smoothing) + terms.z * log_mass * log_mass;
  if (!gradient) return loss;
  if (terms.smoothing > 0 || terms.z > 0) {
    cross_entropy_slope(logits, classes, target, weight, static_cast<double>(peak), static_cast<double>(mass), terms,
                        classes);
    return loss;
  }
  real const chosen = static_cast<real>(logits[target]);
  F const factor = F::all(static_cast<real>(weight / static_cast<double>(mass)));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor).store(logits + i, count); })
  F::all(static_cast<real>(weight) * (std::exp(chosen - peak) / mass - real(1))).store(logits + target, 1);
  return loss;
}

// The parts of cross_entropy_row for a row whose classes are distributed over ranks.
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
template <class T, class Target>
inline double squared_error_row(T* dy, T const* y, Target const* target, std::int64_t columns, double weight) {
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
