#pragma once

#include <concepts>

#include "trireme/nn/expression.hpp"
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
  static constexpr nn::flow flow = nn::flow::any;
  F f;
  Derivative df;
};
template <class F, class Derivative>
elementwise(F, Derivative) -> elementwise<F, Derivative>;

namespace detail {

template <class Env, class F, class Derivative>
class elementwise_node final : public node<Env> {
  using number = typename Env::accumulate;
  using kernels = ops::on<typename Env::space>;
  static constexpr bool reads_y = std::invocable<Derivative const&, number, number>;
  static_assert(std::invocable<F const&, number> && (reads_y || std::invocable<Derivative const&, number>),
                "trireme::nn::elementwise: its functions are f(x) and df(x) or df(x, y), of numbers of the type "
                "float or double");

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit elementwise_node(elementwise<F, Derivative> const& what) : what_(what) {
    this->facts_.in_place = true;
    this->facts_.reads_y = reads_y;
  }
  [[nodiscard]] layer_says says() const override { return {.does = flow::any}; }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>& to, view) override {
    auto const y = to.template take<typename Env::compute>(x.v.extents());
    kernels::each(y, x.v, what_.f);
    if constexpr (reads_y) y_[pass] = y;
    return {y, !reads_y};
  }
  void backward_in_place(pass<Env>& pass, layer_input<Env> x, gradient<Env> d, half) override {
    if constexpr (reads_y) {
      kernels::each(d.v, d.v, x.get(pass), y_[pass],
                    [&](number dy, number at, number y) { return dy * static_cast<number>(what_.df(at, y)); });
    } else {
      kernels::each(d.v, d.v, x.get(pass),
                    [&](number dy, number at) { return dy * static_cast<number>(what_.df(at)); });
    }
  }

 private:
  void do_place(placing<Env>&, layer_step const&) override {}
  elementwise<F, Derivative> what_;
  per_slot<view> y_;
};

}  // namespace detail

template <class Env, class F, class Derivative>
struct node_of<Env, elementwise<F, Derivative>> {
  using type = detail::elementwise_node<Env, F, Derivative>;
};

}  // namespace trireme::nn
