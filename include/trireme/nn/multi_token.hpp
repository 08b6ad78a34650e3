#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/contract/context_group.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/detail/own_rows.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/expression.hpp"
#include "trireme/nn/losses.hpp"
#include "trireme/ops/types.hpp"

/// Layers of multi-token prediction: embeddings of later words, losses besides the last unit's, and layers that run in
/// training only. nn::deepseek combines them.
namespace trireme::nn {

/// Rows of an embedding's table for the words `by` positions further on in each sample, in place of its input: y[b,t] =
/// table[token[b,t+by]]. Behind the end of a sample stands word 0.
///
/// Shapes   tokens (B, T) int32 from the batch, y (B*T, outputs); the table (words, outputs) is an embedding's.
/// Ranks    as nn::embedding.
/// Errors   config_error for `by` below 1, in prediction (the later words do not exist yet; see in_training), where a
///          context group cuts samples, and as nn::embedding.
struct embedding_ahead {
  static constexpr nn::flow flow = nn::flow::rows;
  std::int64_t words = 0;
  std::int64_t outputs = 0;
  std::int64_t by = 1;
  std::string tied{};  ///< the full name of the embedding's table
  initial start{initial::distribution::normal, 0.02};
  friend bool operator==(embedding_ahead const&, embedding_ahead const&) = default;
};

struct in_training_kind {
  static constexpr branch_rule rule{};
};
struct auxiliary_loss_kind {
  static constexpr branch_rule rule{.exit = activation_layout::nothing, .facts = {.in_place = true}};
};

/// Layers that run in training only. In evaluation and prediction their input is passed on unchanged, so their result
/// has the width of their input.
///
/// Errors   config_error for a result of another width.
template <class... L>
[[nodiscard]] auto in_training(L... layers) {
  return compose<in_training_kind>(nn::chain(std::move(layers)...));
}

/// An auxiliary loss: x is passed on unchanged, and in training the loss of layers(x) is added to that of the step. In
/// evaluation and prediction the layers do not run: the model's loss is that of its last unit.
///
/// Weighs   a cross_entropy as the sum over the rows that it counts, divided by the number of rows that the loss of the
///          model counts in the step, on all ranks; other losses as the mean over all rows of the step, whatever
///          targets the model's loss leaves out.
/// Numerics the layers run forward and backward when backward comes to them, because their loss is not needed before.
template <class... L>
[[nodiscard]] auto auxiliary_loss(L... layers) {
  return compose<auxiliary_loss_kind>(nn::chain(std::move(layers)...));
}

namespace loss {

/// In training -log softmax(x)[target `by` rows further on in the sample], times `weight`: a second loss of a model
/// that predicts words further ahead. Rows behind which there is no such target have none. The sum over rows is divided
/// by the number of rows that the model's loss counts. Where it is itself that of the last unit it counts what
/// cross_entropy{} would. To evaluate and to predict it is cross_entropy{}; with `by` 0 always.
///
/// Errors   config_error for a negative `by` or weight; in the first step, where a context group cuts samples.
struct cross_entropy_ahead {
  static constexpr nn::flow flow = nn::flow::loss;
  std::int64_t by = 0;
  double weight = 1;
  friend bool operator==(cross_entropy_ahead const&, cross_entropy_ahead const&) = default;
};

[[nodiscard]] inline std::string to_string(cross_entropy_ahead const& it) {
  return text("cross_entropy_ahead{.by = ", it.by, ", .weight = ", it.weight, "}");
}

}  // namespace loss

namespace detail {

/// Of numbers (B, T), one a row, those `by` rows further on in the same sample, for some of the rows; `otherwise` where
/// there is none. The result is in scratch memory.
template <class Env>
[[nodiscard]] auto further_on(pass<Env>& pass, tensor_view<std::int32_t const, typename Env::space> numbers,
                              std::int64_t by, interval rows, std::int32_t otherwise) {
  using kernels = ops::on<typename Env::space>;
  auto const each = positions_of(pass);
  auto const out = pass.scratch.template take<std::int32_t>({rows.count});
  kernels::fill(out, otherwise);
  auto const copy = [&](std::int64_t at, std::int64_t samples, std::int64_t found) {
    if (samples == 0 || found <= 0) return;
    kernels::copy_blocks(out, {at, each, found}, numbers, {rows.first + at + by, each, found}, {samples, 1, found});
  };
  auto const begun = (each - rows.first % each) % each;  // rows of a sample whose first ones come before
  auto const head = std::min(begun, rows.count), samples = (rows.count - head) / each;
  auto const tail = head + samples * each;
  copy(0, 1, std::min(head, begun - by));
  copy(head, samples, each - by);
  copy(tail, 1, std::min(rows.count - tail, each - by));
  return tensor_view<std::int32_t const, typename Env::space>(out);
}

template <class Env>
class layer_node<Env, embedding_ahead> final : public library_node<Env, embedding_ahead> {
  using library_node<Env, embedding_ahead>::what_;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;

  explicit layer_node(embedding_ahead const& what) : library_node<Env, embedding_ahead>(what, {.weights = true}) {
    if (what.by >= 1) return;
    throw config_error(
        text("trireme::nn::embedding_ahead: words ", how_many(what.by, "position"), " ahead; it takes 1 or more"));
  }
  void visit(parameter_visitor<Env> const& each) override { each(table_); }
  held<Env> forward(pass<Env>& pass, held<Env>, arena_of<Env>&, view) override {
    if (pass.purpose == purpose::predict) {
      throw config_error("trireme::nn::embedding_ahead: words ahead are not there to predict; put it into in_training");
    }
    auto const mark = pass.scratch.mark();
    auto const words = words_of(pass);
    auto const y = kept_sum(pass, [&](auto& memory) {
      auto const all = memory.template take<typename Env::compute>({words.size(), what_.outputs});
      kernels::embed(all, words, table_.value, {}, part_);
      return partial_sum<view>(all);
    });
    pass.scratch.rewind(mark);
    return {y, true};
  }
  void backward_input(pass<Env>&, layer_input<Env>, view, view, target<Env> to, half) override {
    if (!to.accumulate) kernels::fill(to.into, 0.0);
  }
  void backward_weight(pass<Env>& pass, layer_input<Env>, view dy) override {
    auto const all = pass.group.gather(dy, rows_of(pass), pass.scratch);
    kernels::embed_backward(table_.gradient, {}, all, words_of(pass), part_);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    if (context_group<Env>::of(at.groups).size() > 1) {
      throw config_error(text("trireme::nn::embedding_ahead ", at.name,
                              ": words ahead may lie on another rank where parallel::context cuts samples; leave one "
                              "of them out"));
    }
    table_ = word_table("embedding_ahead", at, what_.tied, {what_.words, what_.outputs}, what_.start);
    part_ = {at.own.of(what_.words).first, what_.words};
    at.width = what_.outputs;
  }
  [[nodiscard]] auto words_of(pass<Env>& pass) const {
    auto const tokens = pass.batch.inputs.template as<std::int32_t>("inputs");
    return further_on(pass, tokens.flat(), what_.by, {0, tokens.size()}, 0);
  }

  ops::table_range part_;
  parameter<Env> table_{};
};

template <class Env>
class layer_node<Env, in_training_kind> final : public branching_node<Env> {
 public:
  using branching_node<Env>::branching_node;
  using typename node<Env>::view;

  [[nodiscard]] bool idle(pass<Env> const& pass) const override { return !pass.training(); }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>&, view) override {
    auto const y = this->branches_[0].forward(pass, x.v);
    return {y.v, y.ours, y.entry && x.entry};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half when) override {
    this->branches_[0].backward(pass, x, {dy, false, memory::scratch}, to, when);
  }

 private:
  row_shape join(row_shape const& from, std::vector<row_shape> const& made, bool) override {
    if (made[0].width == from.width) return made[0];
    throw config_error(text("trireme::nn::in_training: the layers of ", this->name(), " make rows of ", made[0].width,
                            " numbers from rows of ", from.width,
                            "; without them the latter go on, so both must be as wide"));
  }
};

template <class Env>
class layer_node<Env, auxiliary_loss_kind> final : public branching_node<Env> {
 public:
  using typename node<Env>::view;

  layer_node(auxiliary_loss_kind kind, std::vector<chain_node<Env>> branches)
      : branching_node<Env>(kind, std::move(branches)) {
    if (!this->branches_[0].loss()->is_of_targets()) this->facts_.adds_sample_losses = true;
  }
  [[nodiscard]] bool idle(pass<Env> const& pass) const override { return !pass.training(); }
  held<Env> forward(pass<Env>&, held<Env> x, arena_of<Env>&, view) override { return {x.v, false, x.entry}; }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view, target<Env> to, half when) override {
    auto const mark = pass.scratch.mark();
    static_cast<void>(this->branches_[0].forward(pass, x.here));
    this->branches_[0].backward(pass, x, {}, {to.into, true}, when);
    pass.scratch.rewind(mark);
  }

 private:
  row_shape join(row_shape const& from, std::vector<row_shape> const&, bool) override { return from; }
};

template <class Env>
class layer_node<Env, loss::cross_entropy_ahead> final : public layer_node<Env, loss::cross_entropy> {
  using plain = layer_node<Env, loss::cross_entropy>;

 public:
  using typename node<Env>::view;
  using typename plain::losses;

  explicit layer_node(loss::cross_entropy_ahead const& what) : plain(loss::cross_entropy{}), what_(what) {
    if (what.by >= 0 && what.weight >= 0) return;
    throw config_error(text("trireme::nn::loss::cross_entropy_ahead: ", how_many(what.by, "row"), " ahead, weight ",
                            what.weight, "; neither is negative"));
  }
  losses of(pass<Env>& pass, view logits, std::int64_t first, double weight, ops::table_range part) override {
    if (!pass.training() || what_.by == 0) return plain::of(pass, logits, first, weight, part);
    losses found = this->counted_of(plain::targets_of(pass, first, logits.extent(0)));
    found.add_without_rows(plain::of(pass, logits, first, weight * what_.weight, part), 1, what_.weight);
    return found;
  }

 private:
  typename plain::numbers targets_of(pass<Env>& pass, std::int64_t first, std::int64_t n) override {
    if (!pass.training() || what_.by == 0) return plain::targets_of(pass, first, n);
    if (context_group<Env>::of(pass).size() > 1) {
      throw config_error(
          "trireme::nn::loss::cross_entropy_ahead: parallel::context cuts samples, and targets ahead may lie on "
          "another rank; leave one of them out");
    }
    auto const all = pass.batch.targets.template as<std::int32_t>("targets");
    return further_on(pass, all.flat(), what_.by, {first, n}, loss::cross_entropy{}.ignored);
  }
  loss::cross_entropy_ahead what_;
};

}  // namespace detail

}  // namespace trireme::nn
