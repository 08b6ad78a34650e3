#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "trireme/core/assertion.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

template <class M, class G, class P>
void adamw_elements(M* value, M* first, M* second, std::int64_t n, gradient_terms<G, host> const& gradient,
                    std::span<tensor_view<P, host> const> outputs, adamw_numbers const& numbers);
template <class M, class G, class P>
void sgd_elements(M* value, M* velocity, std::int64_t n, gradient_terms<G, host> const& gradient,
                  std::span<tensor_view<P, host> const> outputs, sgd_numbers const& numbers);

}  // namespace detail

/// Optimizer steps, each in one pass over memory: gradients are summed when they are read, and the new value is
/// converted and written to every output.
/// Shapes   all views of one call (n).
/// Bytes    adamw with one term and no other output: reads 16 and writes 12 bytes per parameter.
/// Numerics in the accumulate type of the master values; an element's result does not depend on where a slice begins.
/// Threads  thread-safe on different slices. A value may be one of the outputs.
/// Errors   assertion_error (light) if the sizes differ.
struct host_updates {
  template <class T>
  using view = tensor_view<T, host>;

  /// One step of AdamW [Loshchilov, Hutter, 2019].
  template <class M, class G, class P>
  static void adamw(view<M> value, detail::output<M> first, detail::output<M> second,
                    gradient_terms<G, host> const& gradient, std::span<view<P> const> outputs,
                    adamw_numbers const& numbers) {
    detail::same_size("adamw", value.size(), first.size());
    detail::same_size("adamw", value.size(), second.size());
    check("adamw", value.size(), gradient, outputs);
    detail::adamw_elements(raw(value), raw(first), raw(second), value.size(), gradient, outputs, numbers);
  }

  /// One step of SGD. Without momentum the velocity is not touched and may be empty.
  template <class M, class G, class P>
  static void sgd(view<M> value, detail::output<M> velocity, gradient_terms<G, host> const& gradient,
                  std::span<view<P> const> outputs, sgd_numbers const& numbers) {
    if (!exactly_equal(numbers.momentum, 0)) detail::same_size("sgd", value.size(), velocity.size());
    check("sgd", value.size(), gradient, outputs);
    detail::sgd_elements(raw(value), raw(velocity), value.size(), gradient, outputs, numbers);
  }

  /// value -= by * (-1, 0 or 1: the sign of `measured`).
  template <class M, class G>
  static void step_against_sign(view<M> value, view<G> measured, double by) {
    detail::same_size("step_against_sign", value.size(), measured.size());
    for (std::int64_t i = 0; i < value.size(); ++i)
      raw(value)[i] = ops::stepped_against_sign(raw(value)[i], static_cast<accumulate_t<G>>(raw(measured)[i]), by);
  }

 private:
  template <class G, class P>
  static void check(char const* who, std::int64_t n, gradient_terms<G, host> const& gradient,
                    std::span<view<P> const> outputs) {
    for (auto const& term : gradient.terms) detail::same_size(who, n, term.size());
    for (auto const& output : outputs) detail::same_size(who, n, output.size());
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/updates.ipp"
#endif
