#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/pattern.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/detail/packed_weights.hpp"
#include "trireme/nn/node.hpp"

namespace trireme::nn::detail {

inline constexpr std::string_view first_factor = ".lora_A.weight", second_factor = ".lora_B.weight";

[[nodiscard]] constexpr bool is_low_rank_factor(std::string_view parameter) noexcept {
  return parameter.ends_with(first_factor) || parameter.ends_with(second_factor);
}
/// Running means are not frozen: they are not trained in any case.
inline void freeze_all_but_changes(parameter_info& info) {
  info.frozen = exactly_equal(info.running, 0) && !is_low_rank_factor(info.name);
}

/// Whether one of some patterns fits a layer's name, or the end of it behind a dot.
[[nodiscard]] constexpr bool changes_layer(lora_options const& what, std::string_view name) noexcept {
  if (what.rank == 0) return false;
  while (!matches_any(what.layers, name)) {
    auto const dot = name.find('.');
    if (dot == name.npos) return false;
    name.remove_prefix(dot + 1);
  }
  return true;
}

/// The low-rank change of a product: y += alpha / rank * (x a) b.
///
/// Shapes   x (rows, inputs), y (rows, outputs), a (inputs, rank), b (rank, outputs): of the part that lies here. A
///          product that is cut by columns cuts b, one that is cut by rows cuts a; the other factor is whole on every
///          rank, and its gradient is a term.
/// Bytes    keeps alpha / rank * x a, and between the halves of backward nothing.
template <class Env>
class low_rank_change {
  using space = typename Env::space;
  using value = typename Env::compute;
  using kernels = ops::on<space>;
  using view = view_of<Env>;

 public:
  low_rank_change(lora_options const& what, std::string const& layer, parameter_info const& weight)
      : factor_(what.alpha / static_cast<double>(what.rank)), rank_(what.rank) {
    auto const& whole = weight.whole_extents();
    int const last = whole.rank() - 1;
    shape second{rank_};
    for (int axis = 1; axis <= last; ++axis) second.push_back(whole[axis]);
    initial const start{initial::distribution::normal, 1 / static_cast<double>(rank_)};
    a_.info = {text(layer, first_factor), {whole[0], rank_}, start, true};
    b_.info = {text(layer, second_factor), second, {}, true};
    b_.info.fused = weight.fused;
    if (!weight.is_shard()) return;
    bool const by_rows = weight.extents[0] < whole[0];
    int const axis = by_rows ? 0 : last;
    auto& cut = by_rows ? a_.info : b_.info;
    cut = shard_of(cut, axis, {weight.first[axis], weight.extents[axis]});
  }

  void visit(parameter_visitor<Env> const& each) {
    each(a_);
    each(b_);
  }
  void visit_whole(parameter_visitor<Env> const& each) {
    if (!a_.info.is_shard()) each(a_);
    if (!b_.info.is_shard()) each(b_);
  }

  void forward(pass<Env>& pass, view y, view x) {
    auto& inner = inner_[pass];
    auto& memory = pass.backward_follows() ? pass.activations : pass.scratch;
    inner = memory.template take<value>({x.extent(0), rank_});
    kernels::linear(inner, x, packed(pass, packed_a_, a_, a_.info.extents[0], rank_));
    scale(inner);
    kernels::linear(y, inner, packed_second(pass), {.residual = y});
  }
  /// dx (+)= what the change adds to the gradient of x.
  void backward_input(pass<Env>& pass, view dx, view dy, bool accumulate) {
    auto const mark = pass.scratch.mark();
    kernels::linear_backward_input(dx, through_second(pass, dy), packed(pass, packed_a_, a_, a_.info.extents[0], rank_),
                                   {.accumulate = accumulate});
    pass.scratch.rewind(mark);
  }
  void backward_weight(pass<Env>& pass, view x, view dy) {
    auto const mark = pass.scratch.mark();
    kernels::linear_backward_weight(b_.gradient.reshaped({rank_, columns()}), {}, inner_[pass], dy,
                                    ops::orientation::in_out);
    kernels::linear_backward_weight(a_.gradient, {}, x, through_second(pass, dy), ops::orientation::in_out);
    pass.scratch.rewind(mark);
  }

 private:
  [[nodiscard]] std::int64_t columns() const { return b_.info.extents.size() / rank_; }
  [[nodiscard]] view through_second(pass<Env>& pass, view dy) {
    auto const inner = pass.scratch.template take<value>({dy.extent(0), rank_});
    kernels::linear_backward_input(inner, dy, packed_second(pass));
    scale(inner);
    return inner;
  }
  void scale(view inner) const { kernels::scale(inner, factor_); }
  auto& packed_second(pass<Env>& pass) { return packed(pass, packed_b_, b_, rank_, columns()); }
  static auto& packed(pass<Env>& pass, ops::weights<value, space>& into, parameter<Env> const& of, std::int64_t inputs,
                      std::int64_t outputs) {
    into.bind(of.value.reshaped({inputs, outputs}), ops::orientation::in_out);
    into.refresh(pass.version);
    return into;
  }

  double factor_;
  std::int64_t rank_;
  parameter<Env> a_{}, b_{};
  ops::weights<value, space> packed_a_, packed_b_;
  per_micro_batch<view> inner_;  // alpha / rank * x a
};

}  // namespace trireme::nn::detail
