// The formulas of optimizer steps on lanes; included once for each CPU level (see simd.hpp), and for devices.
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class F>
struct adamw_step {
  F beta1, beta2, rest1, rest2, step, correction, epsilon, keep;

  explicit TRIREME_INLINE adamw_step(adamw_constants<typename F::real> const& c)
      : beta1(F::all(c.beta1)),
        beta2(F::all(c.beta2)),
        rest1(F::all(c.rest1)),
        rest2(F::all(c.rest2)),
        step(F::all(c.step)),
        correction(F::all(c.correction)),
        epsilon(F::all(c.epsilon)),
        keep(F::all(c.keep)) {}
  /// The next value, and the next moments m and v.
  TRIREME_INLINE F next(F value, F& m, F& v, F g) const {
    m = fma(beta1, m, rest1 * g);
    v = fma(beta2, v, rest2 * (g * g));
    F const direction = m / fma(sqrt(v), correction, epsilon);
    return fma(step, direction, keep * value);
  }
};

template <class F>
struct sgd_step {
  F rate, momentum, decay;

  explicit TRIREME_INLINE sgd_step(sgd_constants<typename F::real> const& c)
      : rate(F::all(c.rate)), momentum(F::all(c.momentum)), decay(F::all(c.decay)) {}
  TRIREME_INLINE F decayed(F value, F g) const { return fma(decay, value, g); }
  TRIREME_INLINE F next(F value, F g) const { return fma(rate, g, value); }
  /// With momentum: v becomes the next velocity.
  TRIREME_INLINE F moved(F value, F& v, F g, bool nesterov) const {
    v = fma(momentum, v, g);
    return next(value, nesterov ? fma(momentum, v, g) : v);
  }
};

}  // namespace trireme::ops::detail::TRIREME_LEVEL
