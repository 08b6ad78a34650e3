#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/expert_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/detail/packed_weights.hpp"
#include "trireme/nn/expression.hpp"
#include "trireme/ops/sets/experts.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// A mixture of experts: a router chooses `chosen` of `count` mlps for each row. The result is the sum of their
/// outputs, weighted by the router's probabilities, normalised over those chosen. A single choice is weighted by its
/// probability as it is, or the router would get no gradient. No row is dropped, however many choose one expert.
///
/// With `scored` they are chosen as in DeepSeek V3: by sigmoids of the router's logits, each plus a bias that no
/// gradient trains; the weights are the sigmoids, normalised over those chosen and times `choice.scale`. In each step
/// the bias of an expert that was chosen more often than the mean, by all micro-batches of all ranks, sinks by `speed`,
/// and that of one chosen less often rises as much: it is a parameter_info::running by sign, so the same on every mesh,
/// saved and hashed. A single choice then gives the router no gradient: it is weighted by `choice.scale`.
///
/// Shapes   x, y (rows, channels); the router's weight (channels, count), and with `scored` its bias (count); experts'
///          weights lie in one tensor each: c_fc (count, channels, hidden), c_proj (count, hidden, channels), and their
///          biases (count, hidden), (count, channels). `gated` experts have no biases, and three matrices: gate_proj,
///          up_proj (count, channels, hidden), down_proj (count, hidden, channels).
/// Ranks    the ranks of an expert group share the experts: each has share().of(count) of them. Rows are sent to their
///          experts and back.
/// Bytes    saves x, the router's probabilities, and for each choice of a row two rows of channels, two of hidden. How
///          many rows come to a rank differs from pass to pass, so memory may still grow after the first steps.
/// Numerics a row's sum over its experts is in the order of its choices, the most probable first; of equally probable
///          experts that of the lower number is chosen. Gradients of experts are sums over rows in the order of ranks.
/// Weighs   the balance loss is 1 for a sample whose rows choose all experts equally often. Each such layer adds
///          `balance` times its mean over all samples of the step, on all ranks, to the loss, whatever targets that
///          loss leaves out and however samples are dealt out. For this the ranks add up, before the first pass of a
///          step, how many rows their losses will count: two numbers, if there is a balance loss.
/// Method   [Shazeer et al., 2017]; the balance loss is that of [Fedus et al., 2021], for each sample by itself;
///          `scored`: [DeepSeek-AI, "DeepSeek-V3", 2024], 2.1.2; `gated`: [Shazeer, "GLU variants", 2020].
/// Errors   config_error if a group has more ranks than there are experts, `channels` is not the width of the input,
///          groups of experts do not fit, or there is a balance loss beside `scored`; in the first pass, if there is a
///          balance loss and ranks share the positions of samples.
struct experts {
  TRIREME_NEEDS_KERNELS("nn::experts", experts);
  static constexpr nn::flow flow = nn::flow::all;
  std::int64_t hidden = 0;
  std::int64_t count = 1;
  std::int64_t chosen = 1;
  double balance = 0;  ///< weight of the balance loss, a mean over all samples of a step, in the loss
  double projection_scale = 0.02;
  bool gated = false;           ///< an expert is down(silu(gate(x)) * up(x)), without biases
  bool scored = false;          ///< chosen by sigmoids and a bias
  ops::scored_choice choice{};  ///< with `scored`
  double speed = 0.001;         ///< by which a bias moves in a step; 0: it stays
  friend bool operator==(experts const&, experts const&) = default;
};

namespace detail {

/// All of its backward is done in the first half.
template <class Env>
class layer_node<Env, experts> final : public library_node<Env, experts> {
  using library_node<Env, experts>::what_;
  using space = typename Env::space;
  using value = typename Env::compute;
  using accumulate = typename Env::accumulate;
  using kernels = ops::on<space>;
  using sums = tensor_view<accumulate, space>;
  using numbers = tensor_view<std::int32_t, space>;

 public:
  using typename node<Env>::view;

  explicit layer_node(experts const& what)
      : library_node<Env, experts>(what, {.overwrites = true, .adds_sample_losses = !exactly_equal(what.balance, 0)}) {}
  void visit(parameter_visitor<Env> const& each) override {
    each(router_);
    if (what_.scored) each(favour_);
    if (what_.gated) each(gate_);
    each(up_);
    if (!what_.gated) each(up_bias_);
    each(down_);
    if (!what_.gated) each(down_bias_);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>&, view) override {
    return {forward(pass, saved_[pass], x.v, positions_of(pass)), true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half) override {
    auto& kept = saved_[pass];
    kept.x = x.get(pass);
    backward(pass, kept, to.into, dy, positions_of(pass));
  }
  void shadow_forward(pass<Env>& pass) override {
    auto& kept = saved_[pass];
    for (auto& each : own_row(kept, pass)) each = 0;
    kept.results = pass.take({0, channels_});
    run_experts(pass, kept, kept.results);
  }
  void shadow_backward(pass<Env>& pass) override {
    auto& kept = saved_[pass];
    run_experts_backward(pass, kept, kept.results, kept.results);
  }

 private:
  struct saved {
    view x;                           // (rows, channels)
    sums probabilities;               // (rows, count)
    numbers chosen, positions;        // (rows, chosen): the experts, and where their rows lie, sorted by expert
    sums weights;                     // (rows, chosen)
    view results;                     // (rows * chosen, channels): the experts', sorted by expert
    view gathered;                    // (rows here, channels): what has come for the experts here, expert by expert
    view before, inner;               // (rows here, hidden): on both sides of the activation; of gated experts its
                                      // input, and the other factor
    std::vector<std::int64_t> table;  // (ranks, count): how many rows of each rank choose each expert
  };

  void do_place(placing<Env>& at, layer_step const&) override {
    expect_number("nn::experts", ".hidden", what_.hidden, at_least_one);
    expect_number("nn::experts", ".count", what_.count, at_least_one);
    expect_number("nn::experts", ".chosen", what_.chosen, {.low = 1, .high = static_cast<double>(what_.count)});
    expect_number("nn::experts", ".balance", what_.balance, not_negative);
    own_ = expert_group<Env>::of(at.groups).coordinate();
    if (own_.size > what_.count) {
      throw config_error(text("trireme::nn::experts: ", how_many(what_.count, "expert"), " cannot be distributed over ",
                              own_.size, " ranks; an expert group has at most as many ranks as a layer has experts"));
    }
    if (what_.scored) check_scored();
    channels_ = at.width;
    here_ = own_.of(what_.count);
    at.counted.product(channels_, what_.count);  // the router
    at.counted.product(channels_ * what_.chosen, what_.hidden * (what_.gated ? 3 : 2));
    auto const count = what_.count, hidden = what_.hidden;
    auto const router = at.name + ".router.", each = at.name + ".experts.";
    router_.info = matrix(router + "weight", {channels_, count}, 0.02);
    favour_.info = {router + "bias", {count}, {}, false};
    favour_.info.running = what_.speed > 0 ? what_.speed : 1;  // without speed nothing is measured, and nothing moves
    favour_.info.by_sign = true;
    gate_.info = distributed(matrix(each + "gate_proj.weight", {count, channels_, hidden}, 0.02));
    up_.info =
        distributed(matrix(each + (what_.gated ? "up_proj.weight" : "c_fc.weight"), {count, channels_, hidden}, 0.02));
    up_bias_.info = distributed({each + "c_fc.bias", {count, hidden}, {}, false});
    down_.info = distributed(matrix(each + (what_.gated ? "down_proj.weight" : "c_proj.weight"),
                                    {count, hidden, channels_}, what_.projection_scale));
    down_bias_.info = distributed({each + "c_proj.bias", {count, channels_}, {}, false});
    packed_gate_.resize(static_cast<std::size_t>(what_.gated ? here_.count : 0));
    packed_up_.resize(static_cast<std::size_t>(here_.count));
    packed_down_.resize(static_cast<std::size_t>(here_.count));
  }

  /// @param context  rows of one sample.
  view forward(pass<Env>& pass, saved& kept, view x, std::int64_t context) {
    auto const rows = x.extent(0);
    if (!exactly_equal(what_.balance, 0) && context_group<Env>::of(pass).size() > 1) {
      throw config_error(text("trireme::nn::experts: the balance loss is of whole samples, whose positions ",
                              context_group<Env>::of(pass).size(),
                              " ranks share; use .balance = 0, or leave parallel::context out"));
    }
    kept.x = x;
    kept.probabilities = pass.activations.template take<accumulate>({rows, what_.count});
    kept.weights = pass.activations.template take<accumulate>({rows, what_.chosen});
    kept.chosen = pass.activations.template take<std::int32_t>({rows, what_.chosen});
    kept.positions = pass.activations.template take<std::int32_t>({rows, what_.chosen});
    kept.results = pass.take({rows * what_.chosen, channels_});
    auto const y = pass.take(x.extents());
    auto const here = pass.scratch.mark();
    auto const logits = pass.scratch.template take<value>({rows, what_.count});
    kernels::linear(logits, x, packed_router(pass), {});
    if (what_.scored) {
      kernels::score(kept.probabilities, kept.chosen, kept.weights, logits, favour_.value, what_.choice);
    } else {
      kernels::route(kept.probabilities, kept.chosen, kept.weights, logits);
    }
    kernels::sort_by_expert(kept.positions, own_row(kept, pass), kept.chosen);
    auto const dispatched = pass.scratch.template take<value>({rows * what_.chosen, channels_});
    kernels::dispatch(dispatched, x, kept.positions);
    run_experts(pass, kept, dispatched);
    kernels::combine(y, kept.results, kept.positions, kept.weights);
    if (pass.training() && !exactly_equal(what_.balance, 0)) {
      pass.loss.add_without_rows(kernels::imbalance(sums{}, kept.probabilities, kept.chosen, context, 0), 1,
                                 what_.balance * pass.rows_of_loss(context));
    }
    pass.scratch.rewind(here);
    return y;
  }

  /// dx = the gradient of x.
  void backward(pass<Env>& pass, saved& kept, view dx, view dy, std::int64_t context) {
    auto const here = pass.scratch.mark();
    auto const dresults = pass.scratch.template take<value>(kept.results.extents());
    auto const ddispatched = pass.scratch.template take<value>(kept.results.extents());
    auto const dweights = pass.scratch.template take<accumulate>(kept.weights.extents());
    kernels::combine_backward(dresults, dweights, dy, kept.results, kept.positions, kept.weights);
    run_experts_backward(pass, kept, ddispatched, dresults);
    kernels::combine(dx, ddispatched, kept.positions, sums{});
    sums slopes;
    if (pass.training() && !exactly_equal(what_.balance, 0)) {
      slopes = pass.scratch.template take<accumulate>(kept.probabilities.extents());
      kernels::imbalance(slopes, kept.probabilities, kept.chosen, context, what_.balance * pass.weight_of_sample());
    }
    auto const dlogits = pass.scratch.template take<value>(kept.probabilities.extents());
    if (what_.scored) {
      kernels::score_backward(dlogits, dweights, kept.probabilities, kept.chosen, kept.weights, what_.choice);
      if (what_.speed > 0) kernels::add_excess(favour_.gradient, kept.chosen);
    } else {
      kernels::route_backward(dlogits, dweights, kept.probabilities, kept.chosen, kept.weights, slopes);
    }
    kernels::linear_backward_weight(router_.gradient, {}, kept.x, dlogits, ops::orientation::in_out);
    kernels::linear_backward_input(dx, dlogits, packed_router(pass), {.accumulate = true});
    pass.scratch.rewind(here);
  }

  static parameter_info matrix(std::string name, shape extents, double scale) {
    return {std::move(name), extents, {initial::distribution::normal, scale}, true};
  }
  void check_scored() const {
    auto const& how = what_.choice;
    bool const groups = how.groups > 0 && how.chosen_groups > 0 && how.chosen_groups <= how.groups &&
                        what_.count % how.groups == 0 && what_.chosen <= how.chosen_groups * (what_.count / how.groups);
    if (groups && how.scale > 0 && what_.speed >= 0 && exactly_equal(what_.balance, 0)) return;
    throw config_error(text("trireme::nn::experts: ", what_.chosen, " of ", how_many(what_.count, "expert"), ", of ",
                            how.chosen_groups, " of ", how_many(how.groups, "group"), ", scale ", how.scale, ", speed ",
                            what_.speed, ", balance ", what_.balance,
                            "; groups are of equal sizes and have enough experts, the scale is above 0, speed is not "
                            "below, and a bias balances in place of a loss"));
  }
  // Of all experts, whose tensors are their own.
  [[nodiscard]] parameter_info distributed(parameter_info whole) const {
    whole.stacked = true;
    if (own_.size == 1) return whole;
    whole = shard_of(whole, 0, here_);
    whole.distributed = expert_group<Env>::kind;
    return whole;
  }
  // Of expert e of those here.
  template <class View>
  static View matrix_of(View all, std::int64_t e) {
    auto const n = all.extent(1) * all.extent(2);
    return all.flat(e * n, n).reshaped({all.extent(1), all.extent(2)});
  }
  template <class View>
  static View bias_of(View all, std::int64_t e) {
    return all.flat(e * all.extent(1), all.extent(1));
  }
  using product = product_operand::product;
  static constexpr auto for_input = product::input_gradient;
  auto& packed_gate(pass<Env>& pass, std::int64_t e, product in = product::forward) {
    return packed(packed_gate_, pass, gate_, e, in);
  }
  auto& packed_up(pass<Env>& pass, std::int64_t e, product in = product::forward) {
    return packed(packed_up_, pass, up_, e, in);
  }
  auto& packed_down(pass<Env>& pass, std::int64_t e, product in = product::forward) {
    return packed(packed_down_, pass, down_, e, in);
  }
  static auto& packed(std::vector<ops::weights<value, space>>& all, pass<Env>& pass, parameter<Env> const& of,
                      std::int64_t e, product in) {
    return packed_weights(all[static_cast<std::size_t>(e)], pass, of.info.name, matrix_of(of.value, e), in);
  }
  // Not through the precision's operands: rounding them must not change which experts are chosen.
  auto& packed_router(pass<Env> const& pass) {
    packed_router_.bind(router_.value, ops::orientation::in_out);
    packed_router_.refresh(pass.version);
    return packed_router_;
  }

  // What products with this matrix read: x or dy, or the operands that the precision writes.
  static view input(pass<Env>& pass, parameter<Env> const& with, view x) {
    return pass.operand(with.info.name, product_operand::role::input, x);
  }
  static view gradient(pass<Env>& pass, parameter<Env> const& with, view dy, product in) {
    return pass.operand(with.info.name, product_operand::role::gradient, dy, in);
  }

  std::span<std::int64_t> own_row(saved& kept, pass<Env> const& pass) const {
    kept.table.resize(static_cast<std::size_t>(expert_group<Env>::of(pass).size() * what_.count));
    return std::span(kept.table)
        .subspan(static_cast<std::size_t>(own_.rank * what_.count), static_cast<std::size_t>(what_.count));
  }
  [[nodiscard]] std::int64_t rows_of(saved const& kept, int rank, std::int64_t expert) const {
    return kept.table[static_cast<std::size_t>(rank * what_.count + expert)];
  }
  [[nodiscard]] std::int64_t rows_of(saved const& kept, int rank, interval experts) const {
    std::int64_t sum = 0;
    for (auto e = experts.first; e < experts.first + experts.count; ++e) sum += rows_of(kept, rank, e);
    return sum;
  }
  // Rows that come from each rank, and that go to each.
  void count(saved const& kept) {
    come_.clear();
    go_.clear();
    for (int rank = 0; rank < own_.size; ++rank) {
      come_.push_back(rows_of(kept, rank, here_));
      go_.push_back(rows_of(kept, own_.rank, group_rank{rank, own_.size}.of(what_.count)));
    }
  }
  // Calls f(e, first, n) for each expert here that somebody has chosen: its rows of `gathered`.
  template <class F>
  void for_each_here(saved const& kept, F&& f) const {
    std::int64_t first = 0;
    for (std::int64_t e = 0; e < here_.count; ++e) {
      std::int64_t n = 0;
      for (int rank = 0; rank < own_.size; ++rank) n += rows_of(kept, rank, here_.first + e);
      if (n > 0) f(e, first, n);
      first += n;
    }
  }
  // What has come lies rank by rank, and within a rank expert by expert; experts want theirs together.
  void sort(saved const& kept, view by_expert, view by_rank, bool back) {
    runs_.clear();
    runs_.reserve(static_cast<std::size_t>(here_.count * own_.size));
    std::int64_t to = 0;
    for (std::int64_t e = 0; e < here_.count; ++e) {
      std::int64_t before = 0;  // rows of the ranks before
      for (int rank = 0; rank < own_.size; ++rank) {
        auto const n = rows_of(kept, rank, here_.first + e);
        auto const from = before + rows_of(kept, rank, {here_.first, e});
        if (n > 0) runs_.push_back({(back ? from : to) * channels_, (back ? to : from) * channels_, n * channels_});
        before += rows_of(kept, rank, here_);
        to += n;
      }
    }
    kernels::copy_runs(back ? by_rank : by_expert, back ? by_expert : by_rank, runs_);
  }
  // dispatch sends this rank's rows, sorted by expert, to the ranks of the experts; combine sends rows back.
  void dispatch(pass<Env>& pass, saved const& kept, view gathered, view own) {
    if (own_.size == 1) return kernels::copy(gathered, own);
    auto const here = pass.scratch.mark();
    auto const come = pass.scratch.template take<value>(gathered.extents());
    expert_group<Env>::of(pass).all_to_all(come, come_, own, go_);
    sort(kept, gathered, come, false);
    pass.scratch.rewind(here);
  }
  void combine(pass<Env>& pass, saved const& kept, view own, view gathered) {
    if (own_.size == 1) return kernels::copy(own, gathered);
    auto const here = pass.scratch.mark();
    auto const come = pass.scratch.template take<value>(gathered.extents());
    sort(kept, gathered, come, true);
    expert_group<Env>::of(pass).all_to_all(own, go_, come, come_);
    pass.scratch.rewind(here);
  }

  void run_experts(pass<Env>& pass, saved& kept, view dispatched) {
    expert_group<Env>::of(pass).gather(kept.table);
    count(kept);
    std::int64_t rows = 0;
    for (auto const each : come_) rows += each;
    kept.gathered = pass.take({rows, channels_});
    kept.before = pass.take({rows, what_.hidden});
    kept.inner = pass.take({rows, what_.hidden});
    dispatch(pass, kept, kept.gathered, dispatched);
    auto const here = pass.scratch.mark();
    auto const results = pass.scratch.template take<value>(kept.gathered.extents());
    for_each_here(kept, [&](std::int64_t e, std::int64_t first, std::int64_t n) {
      if (what_.gated) return gated(pass, kept, e, first, n, results.rows(first, n));
      auto const mark = pass.scratch.mark();
      kernels::linear(kept.inner.rows(first, n), input(pass, up_, kept.gathered.rows(first, n)), packed_up(pass, e),
                      {.bias = bias_of(up_bias_.value, e),
                       .act = ops::activation::gelu,
                       .before_activation = kept.before.rows(first, n)});
      pass.scratch.rewind(mark);
      kernels::linear(results.rows(first, n), input(pass, down_, kept.inner.rows(first, n)), packed_down(pass, e),
                      {.bias = bias_of(down_bias_.value, e)});
      pass.scratch.rewind(mark);
    });
    combine(pass, kept, kept.results, results);
    pass.scratch.rewind(here);
  }

  void run_experts_backward(pass<Env>& pass, saved& kept, view ddispatched, view dresults) {
    count(kept);
    auto const here = pass.scratch.mark();
    auto const dgathered = pass.scratch.template take<value>(kept.gathered.extents());
    auto const dinner = pass.scratch.template take<value>(kept.inner.extents());
    dispatch(pass, kept, dgathered, dresults);
    for_each_here(kept, [&](std::int64_t e, std::int64_t first, std::int64_t n) {
      auto const dy = dgathered.rows(first, n);
      if (what_.gated) return gated_backward(pass, kept, e, first, n, dy);
      auto const dinner_here = dinner.rows(first, n);
      auto const mark = pass.scratch.mark();
      backward_weights(pass, down_.info.name, matrix_of(down_.gradient, e), bias_of(down_bias_.gradient, e),
                       kept.inner.rows(first, n), dy);
      kernels::linear_backward_input(dinner_here, gradient(pass, down_, dy, for_input), packed_down(pass, e, for_input),
                                     {ops::activation::gelu, kept.before.rows(first, n), false});
      pass.scratch.rewind(mark);
      backward_weights(pass, up_.info.name, matrix_of(up_.gradient, e), bias_of(up_bias_.gradient, e),
                       kept.gathered.rows(first, n), dinner_here);
      kernels::linear_backward_input(dy, gradient(pass, up_, dinner_here, for_input), packed_up(pass, e, for_input),
                                     {});
      pass.scratch.rewind(mark);
    });
    combine(pass, kept, ddispatched, dgathered);
    pass.scratch.rewind(here);
  }

  // Expert e on its rows: y = down(silu(gate(x)) * up(x)).
  void gated(pass<Env>& pass, saved& kept, std::int64_t e, std::int64_t first, std::int64_t n, view y) {
    auto const x = kept.gathered.rows(first, n), up = kept.inner.rows(first, n);
    auto const mark = pass.scratch.mark();
    auto const inner = pass.scratch.template take<value>(up.extents());
    kernels::linear(inner, input(pass, gate_, x), packed_gate(pass, e),
                    {.act = ops::activation::silu, .before_activation = kept.before.rows(first, n)});
    kernels::linear(up, input(pass, up_, x), packed_up(pass, e), {});
    kernels::elementwise_product(inner, inner, up);
    kernels::linear(y, input(pass, down_, inner), packed_down(pass, e), {});
    pass.scratch.rewind(mark);
  }
  // dy becomes dx. What the gate and the factors have become is computed again.
  void gated_backward(pass<Env>& pass, saved& kept, std::int64_t e, std::int64_t first, std::int64_t n, view dy) {
    auto const x = kept.gathered.rows(first, n), before = kept.before.rows(first, n), up = kept.inner.rows(first, n);
    auto const mark = pass.scratch.mark();
    auto const gate = pass.scratch.template take<value>(up.extents());
    auto const inner = pass.scratch.template take<value>(up.extents());
    auto const dinner = pass.scratch.template take<value>(up.extents());
    kernels::activate(gate, before, ops::activation::silu);
    kernels::elementwise_product(inner, gate, up);
    backward_product(pass, down_, packed_down(pass, e, for_input), e, inner, dy, dinner, false);
    kernels::elementwise_product(inner, dinner, up);
    kernels::activate_backward(inner, inner, before, ops::activation::silu);
    kernels::elementwise_product(dinner, dinner, gate);
    backward_product(pass, gate_, packed_gate(pass, e, for_input), e, x, inner, dy, false);
    backward_product(pass, up_, packed_up(pass, e, for_input), e, x, dinner, dy, true);
    pass.scratch.rewind(mark);
  }
  // Expert e's part of a product without a bias.
  void backward_product(pass<Env>& pass, parameter<Env>& of, ops::weights<value, space>& weights, std::int64_t e,
                        view x, view dy, view dx, bool adds) {
    backward_weights(pass, of.info.name, matrix_of(of.gradient, e), {}, x, dy);
    kernels::linear_backward_input(dx, gradient(pass, of, dy, for_input), weights, {.accumulate = adds});
  }

  group_rank own_;
  std::vector<ops::element_run> runs_;  // of sort()
  interval here_;                       // experts that lie here
  std::int64_t channels_ = 0;
  parameter<Env> router_{}, favour_{};  // and what is added to scores
  parameter<Env> gate_{}, up_{}, up_bias_{}, down_{}, down_bias_{};
  ops::weights<value, space> packed_router_;
  std::vector<ops::weights<value, space>> packed_gate_, packed_up_, packed_down_;
  std::vector<std::int64_t> come_, go_;  // rows from and to each rank, in the pass under way
  per_micro_batch<saved> saved_;
};

}  // namespace detail

}  // namespace trireme::nn
