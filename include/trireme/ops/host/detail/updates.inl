// Optimizer steps; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class F, class G>
TRIREME_INLINE F summed_gradient(gradient_terms<G, host> const& gradient, std::int64_t i, int count) {
  F g = F::all(0);
  bool first_term = true;
  for (auto const& term : gradient.terms) {
    F const next = F::load(raw(term) + i, count);
    g = first_term ? next : g + next;
    first_term = false;
  }
  return g * F::all(static_cast<typename F::real>(gradient.scale));
}

template <class M, class G, class P>
inline void adamw(M* value, M* first_moment, M* second_moment, std::int64_t n, gradient_terms<G, host> const& gradient,
                  std::span<tensor_view<P, host> const> outputs, adamw_numbers const& numbers) {
  using F = lanes_for<M, G, P>;
  using real = typename F::real;
  F const beta1 = F::all(static_cast<real>(numbers.beta1));
  F const beta2 = F::all(static_cast<real>(numbers.beta2));
  F const rest1 = F::all(static_cast<real>(1 - numbers.beta1));
  F const rest2 = F::all(static_cast<real>(1 - numbers.beta2));
  F const step = F::all(static_cast<real>(-numbers.learning_rate / numbers.correction1));
  F const correction = F::all(static_cast<real>(1 / std::sqrt(numbers.correction2)));
  F const epsilon = F::all(static_cast<real>(numbers.epsilon));
  F const keep = F::all(static_cast<real>(1 - numbers.learning_rate * numbers.weight_decay));
  TRIREME_FOR_LANES(F, n, i, count, {
    F const g = summed_gradient<F>(gradient, i, count);
    F const m = fma(beta1, F::load(first_moment + i, count), rest1 * g);
    F const v = fma(beta2, F::load(second_moment + i, count), rest2 * (g * g));
    F const direction = m / fma(sqrt(v), correction, epsilon);
    F const next = fma(step, direction, keep * F::load(value + i, count));
    m.store(first_moment + i, count);
    v.store(second_moment + i, count);
    next.store(value + i, count);
    for (auto const& output : outputs) next.store(raw(output) + i, count);
  })
}

template <class M, class G, class P>
inline void sgd(M* value, M* velocity, std::int64_t n, gradient_terms<G, host> const& gradient,
                std::span<tensor_view<P, host> const> outputs, sgd_numbers const& numbers) {
  using F = lanes_for<M, G, P>;
  using real = typename F::real;
  F const rate = F::all(static_cast<real>(-numbers.learning_rate));
  F const momentum = F::all(static_cast<real>(numbers.momentum));
  F const decay = F::all(static_cast<real>(numbers.weight_decay));
  bool const moving = !exactly_equal(numbers.momentum, 0);
  bool const nesterov = numbers.nesterov;
  TRIREME_FOR_LANES(F, n, i, count, {
    F const before = F::load(value + i, count);
    F g = fma(decay, before, summed_gradient<F>(gradient, i, count));
    if (moving) {
      F const v = fma(momentum, F::load(velocity + i, count), g);
      v.store(velocity + i, count);
      g = nesterov ? fma(momentum, v, g) : v;
    }
    F const next = fma(rate, g, before);
    next.store(value + i, count);
    for (auto const& output : outputs) next.store(raw(output) + i, count);
  })
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
