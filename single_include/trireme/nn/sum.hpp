// Trireme 0.1.0: trireme/nn/sum.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 90b106e2302c99481a66c883b8290da5c755d0ba076a7c7f5112dbbd06d1af93
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/nn/sum.hpp
#include <cstdint>
#include <utility>
#include <vector>

namespace trireme::nn {

struct sum_kind {
  static constexpr branch_rule rule{};
};

/// a(x) + b(x), number by number: a residual whose shortcut has layers of its own.
///
/// Errors   config_error for terms of different widths.
/// @see     nn::residual, whose shortcut is x itself
template <class A, class B>
[[nodiscard]] auto sum(A a, B b) {
  return compose<sum_kind>(std::move(a), std::move(b));
}

namespace detail {

template <class Env>
class layer_node<Env, sum_kind> final : public branching_node<Env> {
  using branching_node<Env>::branches_;

 public:
  using typename node<Env>::view;

  using branching_node<Env>::branching_node;

  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>&, view) override {
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
  row_shape join(row_shape const&, std::vector<row_shape> const& made, bool) override {
    if (made[0].width == made[1].width && made[0].image == made[1].image) return made[1];
    throw config_error(text("trireme::nn::sum: the terms of ", this->name(), " are ", made[0].width, " and ",
                            made[1].width, " numbers wide; both must be as wide, and images of one shape"));
  }
};

}  // namespace detail

}  // namespace trireme::nn
