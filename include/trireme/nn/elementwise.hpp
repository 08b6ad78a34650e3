#pragma once

#include <concepts>

#include "trireme/nn/expression.hpp"
#include "trireme/ops/sets/values.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// An activation of your own: y = f(x), number by number, with the derivative df(x), or df(x, y) where that is
/// shorter to compute.
///
/// Numerics both are called with numbers of the accumulate type (double under fp64, else float); a result is rounded
///          once.
/// Bytes    keeps x; with df(x, y) also y.
/// @example nn::elementwise{[](auto x) { return x / (1 + std::abs(x)); },
///                          [](auto x) { return 1 / ((1 + std::abs(x)) * (1 + std::abs(x))); }}
/// @see     nn::gelu and the others, which the product before them does on its way out
template <class F, class Derivative>
struct elementwise {
  TRIREME_NEEDS_KERNELS("nn::elementwise", values);
  static constexpr nn::flow flow = nn::flow::any;
  F f;
  Derivative df;
};
template <class F, class Derivative>
elementwise(F, Derivative) -> elementwise<F, Derivative>;

namespace detail {

template <class Env, class F, class Derivative>
class layer_node<Env, elementwise<F, Derivative>> final : public library_node<Env, elementwise<F, Derivative>> {
  using base = library_node<Env, elementwise<F, Derivative>>;
  using base::what_;
  using number = typename Env::accumulate;
  using kernels = ops::on<typename Env::space>;
  static constexpr bool reads_y = std::invocable<Derivative const&, number, number>;
  static_assert(std::invocable<F const&, number> && (reads_y || std::invocable<Derivative const&, number>),
                "trireme::nn::elementwise: its functions are f(x) and df(x) or df(x, y), of numbers of the type "
                "float or double");

 public:
  using typename node<Env>::view;

  explicit layer_node(elementwise<F, Derivative> const& what) : base(what, {.in_place = true, .reads_y = reads_y}) {}
  held<Env> forward(pass<Env>&, held<Env> x, arena_of<Env>& to, view) override {
    auto const y = to.template take<typename Env::compute>(x.v.extents());
    kernels::each(y, x.v, what_.f);
    return {y, !reads_y};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view y, view dy, target<Env> to, half) override {
    if constexpr (reads_y) {
      kernels::each(to.into, dy, x.get(pass), y,
                    [&](number d, number at, number its) { return d * static_cast<number>(what_.df(at, its)); });
    } else {
      kernels::each(to.into, dy, x.get(pass),
                    [&](number d, number at) { return d * static_cast<number>(what_.df(at)); });
    }
  }

 private:
  void do_place(placing<Env>&, layer_step const&) override {}
};

}  // namespace detail

}  // namespace trireme::nn
