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
  adamw_step<F> const step(adamw_constants<typename F::real>::of(numbers));
  TRIREME_FOR_LANES(F, n, i, count, {
    F const g = summed_gradient<F>(gradient, i, count);
    F m = F::load(first_moment + i, count);
    F v = F::load(second_moment + i, count);
    F const next = step.next(F::load(value + i, count), m, v, g);
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
  auto const constants = sgd_constants<typename F::real>::of(numbers);
  sgd_step<F> const step(constants);
  TRIREME_FOR_LANES(F, n, i, count, {
    F const before = F::load(value + i, count);
    F const g = step.decayed(before, summed_gradient<F>(gradient, i, count));
    F next;
    if (constants.moving) {
      F v = F::load(velocity + i, count);
      next = step.moved(before, v, g, constants.nesterov);
      v.store(velocity + i, count);
    } else {
      next = step.next(before, g);
    }
    next.store(value + i, count);
    for (auto const& output : outputs) next.store(raw(output) + i, count);
  })
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
