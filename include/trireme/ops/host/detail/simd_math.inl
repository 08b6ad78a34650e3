// Elementary functions on lanes; included once for each CPU level (see simd.hpp). In double they call libm.
namespace trireme::ops::detail::TRIREME_LEVEL {

/// exp(x) with error 2 ulp: x = n ln 2 + r, a polynomial in r, times 2^n. 0 below -87.3, infinity above 88.3; NaN stays
/// NaN.
template <class F>
TRIREME_INLINE F exp(F x) {
  if constexpr (sizeof(typename F::real) == 8) {
    return {std::exp(x.v)};
  } else {
    x = max(F::all(-88.0F), min(F::all(89.0F), x));
    F const n = round(x * F::all(1.44269504F));
    F const r = fma(n, F::all(2.12194440e-4F), fma(n, F::all(-0.693359375F), x));
    F p = F::all(1.9875691500e-4F);
    p = fma(p, r, F::all(1.3981999507e-3F));
    p = fma(p, r, F::all(8.3334519073e-3F));
    p = fma(p, r, F::all(4.1665795894e-2F));
    p = fma(p, r, F::all(1.6666665459e-1F));
    p = fma(p, r, F::all(5.0000001201e-1F));
    p = fma(p * r, r, r) + F::all(1.0F);
    return p * power_of_two(n);
  }
}

/// tanh(x) with error 4 ulp: a polynomial near 0, where 1 - 2 / (exp(2x) + 1) cancels.
template <class F>
TRIREME_INLINE F tanh(F x) {
  if constexpr (sizeof(typename F::real) == 8) {
    return {std::tanh(x.v)};
  } else {
    F const a = magnitude(x);
    F const far = F::all(1.0F) - F::all(2.0F) / (exp(a + a) + F::all(1.0F));
    F const signed_far = where_less(x, F::all(0.0F), F::all(0.0F) - far, far);
    F const z = x * x;
    F p = F::all(-5.70498872745e-3F);
    p = fma(p, z, F::all(2.06390887954e-2F));
    p = fma(p, z, F::all(-5.37397155531e-2F));
    p = fma(p, z, F::all(1.33314422036e-1F));
    p = fma(p, z, F::all(-3.33332819422e-1F));
    return where_less(a, F::all(0.625F), fma(p * z, x, x), signed_far);
  }
}

/// 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): (1 + tanh u) / 2 without its cancellation.
template <class F>
TRIREME_INLINE F gelu_gate(F x) {
  using real = typename F::real;
  constexpr real twice = static_cast<real>(-2 * 0.79788456080286535588);
  F const u = x * fma(x * x, F::all(static_cast<real>(0.044715) * twice), F::all(twice));
  return F::all(1) / (F::all(1) + exp(u));
}

/// GPT-2's GELU: x (1 + tanh u) / 2.
template <class F>
TRIREME_INLINE F gelu(F x) {
  return x * gelu_gate(x);
}

/// Its derivative: g + x g (1 - g) 2 u'(x), which is 0 or 1 to the last bit beyond +-10.
template <class F>
TRIREME_INLINE F gelu_derivative(F x) {
  using real = typename F::real;
  x = max(F::all(-10), min(F::all(10), x));
  constexpr real twice = static_cast<real>(2 * 0.79788456080286535588);
  F const g = gelu_gate(x);
  F const slope = fma(x * x, F::all(static_cast<real>(3 * 0.044715) * twice), F::all(twice));
  return fma(x * slope, g * (F::all(1) - g), g);
}

/// The distribution function of the normal distribution, (1 + erf(x / sqrt(2))) / 2; in float with error 1e-7
/// [Abramowitz, Stegun, 1964, 7.1.26].
template <class F>
TRIREME_INLINE F normal_share(F x) {
  if constexpr (sizeof(typename F::real) == 8) {
    return {std::erfc(x.v * -0.70710678118654752440) / 2};
  } else {
    F const z = magnitude(x) * F::all(0.70710678F);
    F const t = F::all(1.0F) / fma(z, F::all(0.3275911F), F::all(1.0F));
    F p = F::all(0.5F * 1.061405429F);
    p = fma(p, t, F::all(0.5F * -1.453152027F));
    p = fma(p, t, F::all(0.5F * 1.421413741F));
    p = fma(p, t, F::all(0.5F * -0.284496736F));
    p = fma(p, t, F::all(0.5F * 0.254829592F));
    F const tail = p * t * exp(F::all(0.0F) - z * z);
    return where_less(x, F::all(0.0F), tail, F::all(1.0F) - tail);
  }
}

/// The derivative of x normal_share(x), which is 0 or 1 to the last bit beyond +-40.
template <class F>
TRIREME_INLINE F gelu_erf_derivative(F x) {
  using real = typename F::real;
  x = max(F::all(-40), min(F::all(40), x));
  F const density = exp(x * x * F::all(static_cast<real>(-0.5))) * F::all(static_cast<real>(0.39894228040143267794));
  return fma(x, density, normal_share(x));
}

/// 1 / (1 + exp(-x))
template <class F>
TRIREME_INLINE F sigmoid(F x) {
  return F::all(1) / (F::all(1) + exp(F::all(0) - x));
}

/// act(x), and act'(x) from x.
template <class F>
TRIREME_INLINE F activated(F x, activation act) {
  switch (act) {
    case activation::gelu:
      return gelu(x);
    case activation::tanh:
      return tanh(x);
    case activation::relu:
      return max(F::all(0), x);
    case activation::silu:
      return x * sigmoid(x);
    case activation::gelu_erf:
      return x * normal_share(x);
    case activation::none:
      break;
  }
  return x;
}
template <class F>
TRIREME_INLINE F activation_slope(F x, activation act) {
  switch (act) {
    case activation::gelu:
      return gelu_derivative(x);
    case activation::tanh: {
      F const y = tanh(x);
      return fma(F::all(0) - y, y, F::all(1));
    }
    case activation::relu:
      return where_less(F::all(0), x, F::all(1), F::all(0));
    case activation::silu: {
      x = max(F::all(-1000), min(F::all(1000), x));  // 0 or 1 there already; infinity times 0 would be NaN
      F const s = sigmoid(x);
      return fma(x * s, F::all(1) - s, s);
    }
    case activation::gelu_erf:
      return gelu_erf_derivative(x);
    case activation::none:
      break;
  }
  return F::all(1);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
