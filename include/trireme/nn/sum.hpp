#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "trireme/nn/expression.hpp"

namespace trireme::nn {

/// a(x) + b(x)
template <class A, class B>
struct sum_of {
  A a;
  B b;
  friend bool operator==(sum_of const&, sum_of const&) = default;
};

/// a(x) + b(x), number by number: a residual whose shortcut has layers of its own.
///
/// Errors   config_error for terms of different widths.
/// @see     nn::residual, whose shortcut is x itself
template <class A, class B>
[[nodiscard]] sum_of<A, B> sum(A a, B b) {
  return {std::move(a), std::move(b)};
}

template <class A, class B>
struct says_of<sum_of<A, B>> {
  static constexpr layer_says value{.does = flow::rows};
};

namespace detail {

template <class A, class B>
struct inside<sum_of<A, B>> {
  template <role, lie>
  static constexpr bool fits() {
    return check<A>::template fits<lie::rows, lie::rows>() && check<B>::template fits<lie::rows, lie::rows>();
  }
};

template <class Env>
class sum_node final : public branching_node<Env> {
  using branching_node<Env>::branches_;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  template <class A, class B>
  explicit sum_node(sum_of<A, B> const& what) : sum_node(nodes_of<Env>(what.a), nodes_of<Env>(what.b)) {}
  sum_node(std::vector<node_pointer<Env>> a, std::vector<node_pointer<Env>> b)
      : branching_node<Env>(std::move(a), std::move(b)) {
    this->facts_.accumulates = true;
  }
  [[nodiscard]] layer_says says() const override { return {.does = flow::rows}; }
  [[nodiscard]] std::int64_t width(std::int64_t from) const override { return branches_[0].width(from); }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>&, view) override {
    return branches_[1].forward(pass, x.v, branches_[0].forward(pass, x.v).v);
  }
  // Neither branch may write to dy, which the other one and the chain around them read.
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half when) override {
    gradient<Env> const d{dy, false, memory::scratch};
    auto const mark = pass.scratch.mark();
    branches_[0].backward(pass, x, d, {to.into, to.accumulate}, when);
    pass.scratch.rewind(mark);
    branches_[1].backward(pass, x, d, {to.into, true}, when);
    pass.scratch.rewind(mark);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const width = at.width;
    auto const image = at.image;
    branches_[0].place(at, lie::rows, lie::rows);
    auto const one = at.width;
    auto const made = at.image;
    at.width = width, at.image = image;
    branches_[1].place(at, lie::rows, lie::rows);
    if (one == at.width && made == at.image) return;
    throw config_error(text("trireme::nn::sum: the terms of ", at.name, " are ", one, " and ", at.width,
                            " numbers wide; both must be as wide, and images of one shape"));
  }
};

}  // namespace detail

template <class Env, class A, class B>
struct node_of<Env, sum_of<A, B>> {
  using type = detail::sum_node<Env>;
};

}  // namespace trireme::nn
