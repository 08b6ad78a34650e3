// Trireme 0.1.0: trireme/nn/multi_token.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: bc02fae93ad48ef5ab4c4b6787a5b24166f9661a80fbcf24a827c7bee7f5de53
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/nn/multi_token.hpp
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// What multi-token prediction needs: words further ahead, losses besides the last unit's, and layers that only
/// training has. nn::deepseek shows how they go together.
namespace trireme::nn {

/// Rows of an embedding's table for the words `by` positions further on in each sample, in place of its input: y[b,t] =
/// table[token[b,t+by]]. Behind the end of a sample stands word 0.
///
/// Shapes   tokens (B, T) int32 from the batch, y (B*T, outputs); the table (words, outputs) is an embedding's.
/// Ranks    as nn::embedding.
/// Errors   config_error for `by` below 1, to predict (the words are not there yet; see in_training), where a context
///          group cuts samples, and as nn::embedding.
struct embedding_ahead {
  static constexpr nn::flow flow = nn::flow::rows;
  std::int64_t words = 0;
  std::int64_t outputs = 0;
  std::int64_t by = 1;
  std::string tied{};  ///< the full name of the embedding's table
  initial start{initial::distribution::normal, 0.02};
  friend bool operator==(embedding_ahead const&, embedding_ahead const&) = default;
};

template <class Chain>
struct in_training_of {
  Chain layers;
  friend bool operator==(in_training_of const&, in_training_of const&) = default;
};
template <class Chain>
struct aside_of {
  Chain layers;
  friend bool operator==(aside_of const&, aside_of const&) = default;
};

/// Layers that work in training only. To evaluate and to predict their input goes on as it is, so their result is as
/// wide.
///
/// Errors   config_error for a result of another width.
template <class... L>
[[nodiscard]] in_training_of<chain_of<L...>> in_training(L... layers) {
  return {nn::chain(std::move(layers)...)};
}

/// Layers that end in a loss, beside the way of the rows: x goes on as it is, and in training the loss of layers(x) is
/// added to that of the step. To evaluate and to predict nothing happens: the model's loss is that of its last unit.
///
/// Weighs   a cross_entropy as the sum over the rows that it counts, divided by the number of rows that the loss of the
///          model counts in the step, on all ranks; other losses as the mean over all rows of the step, whatever
///          targets the model's loss leaves out.
/// Numerics the layers run forward and backward when backward comes to them, because nobody needs their loss before.
template <class... L>
[[nodiscard]] aside_of<chain_of<L...>> aside(L... layers) {
  return {nn::chain(std::move(layers)...)};
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

template <class Chain>
struct says_of<in_training_of<Chain>> {
  static constexpr layer_says value{.does = flow::rows};
};
template <class Chain>
struct says_of<aside_of<Chain>> {
  static constexpr layer_says value{.does = flow::rows};
};

namespace detail {

template <class Chain>
struct inside<in_training_of<Chain>> {
  template <role, lie>
  static constexpr bool fits() {
    return check<Chain>::template fits<lie::rows, lie::rows>();
  }
};
template <class Chain>
struct inside<aside_of<Chain>> {
  template <role, lie>
  static constexpr bool fits() {
    static_assert(exit_of(check<Chain>::says) == lie::nothing,
                  "trireme::nn::aside: the last of its layers is no loss; end with one of nn::loss");
    return check<Chain>::template fits<lie::rows, lie::nothing>();
  }
};

/// Of numbers (B, T), one a row, those `by` rows further on in the same sample, for some of the rows; `otherwise` where
/// there is none. In scratch memory.
template <class Env>
[[nodiscard]] auto further_on(pass<Env>& pass, tensor_view<std::int32_t const, typename Env::space> numbers,
                              std::int64_t by, interval rows, std::int32_t otherwise) {
  using kernels = ops::on<typename Env::space>;
  auto const each = positions_of(pass);
  auto const out = pass.scratch.template take<std::int32_t>({rows.count});
  kernels::fill(out, otherwise);
  for (std::int64_t i = 0; i < rows.count;) {
    auto const at = (rows.first + i) % each;
    auto const here = std::min(each - at, rows.count - i), found = std::min(here, each - by - at);
    if (found > 0) kernels::copy(out.flat(i, found), numbers.flat(rows.first + i + by, found));
    i += here;
  }
  return tensor_view<std::int32_t const, typename Env::space>(out);
}

template <class Env>
class embedding_ahead_node final : public node<Env> {
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit embedding_ahead_node(embedding_ahead const& what) : what_(what) {
    this->facts_.weights = this->facts_.accumulates = true;
    if (what.by >= 1) return;
    throw config_error(
        text("trireme::nn::embedding_ahead: words ", how_many(what.by, "position"), " ahead; it takes 1 or more"));
  }
  [[nodiscard]] layer_says says() const override { return {.does = flow::rows}; }
  [[nodiscard]] std::int64_t width(std::int64_t) const override { return what_.outputs; }
  void visit(parameter_visitor<Env> const& each) override { each(table_); }
  held<Env> forward(pass<Env>& pass, held<Env>, arena<space>&, view) override {
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

  embedding_ahead what_;
  ops::table_part part_;
  parameter<Env> table_{};
};

template <class Env>
class in_training_node final : public branching_node<Env> {
  using branching_node<Env>::branches_;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  template <class Chain>
  explicit in_training_node(in_training_of<Chain> const& what) : in_training_node(nodes_of<Env>(what.layers)) {}
  explicit in_training_node(std::vector<node_pointer<Env>> layers) : branching_node<Env>(std::move(layers)) {
    this->facts_.accumulates = true;
  }
  [[nodiscard]] layer_says says() const override { return {.does = flow::rows}; }
  [[nodiscard]] bool idle(pass<Env> const& pass) const override { return !pass.training(); }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>&, view) override {
    auto const y = branches_[0].forward(pass, x.v);
    return {y.v, y.ours, y.entry && x.entry};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half when) override {
    branches_[0].backward(pass, x, {dy, false, memory::scratch}, to, when);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const from = at.width;
    branches_[0].place(at, lie::rows, lie::rows);
    if (at.width == from) return;
    throw config_error(text("trireme::nn::in_training: the layers of ", at.name, " make rows of ", at.width,
                            " numbers from rows of ", from,
                            "; without them the latter go on, so both must be as wide"));
  }
};

template <class Env>
class aside_node final : public branching_node<Env> {
  using branching_node<Env>::branches_;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  template <class Chain>
  explicit aside_node(aside_of<Chain> const& what) : aside_node(nodes_of<Env>(what.layers)) {}
  explicit aside_node(std::vector<node_pointer<Env>> layers) : branching_node<Env>(std::move(layers)) {
    this->facts_.in_place = true;
  }
  [[nodiscard]] layer_says says() const override { return {.does = flow::rows}; }
  [[nodiscard]] bool idle(pass<Env> const& pass) const override { return !pass.training(); }
  [[nodiscard]] bool adds_sample_losses() const override {
    return branching_node<Env>::adds_sample_losses() || !branches_[0].loss()->is_of_targets();
  }
  held<Env> forward(pass<Env>&, held<Env> x, arena<space>&, view) override { return {x.v, false, x.entry}; }
  void backward_in_place(pass<Env>& pass, layer_input<Env> x, gradient<Env> d, half when) override {
    auto const mark = pass.scratch.mark();
    static_cast<void>(branches_[0].forward(pass, x.here));
    branches_[0].backward(pass, x, {}, {d.v, true}, when);
    pass.scratch.rewind(mark);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const width = at.width;
    auto const image = at.image;
    auto const outside = std::exchange(at.aside, true);
    branches_[0].place(at, lie::rows, lie::nothing);
    at.width = width, at.image = image, at.aside = outside;
  }
};

template <class Env>
class cross_entropy_ahead_node final : public cross_entropy_node<Env> {
 public:
  using typename node<Env>::view;

  explicit cross_entropy_ahead_node(loss::cross_entropy_ahead const& what)
      : cross_entropy_node<Env>(loss::cross_entropy{}), what_(what) {
    if (what.by >= 0 && what.weight >= 0) return;
    throw config_error(text("trireme::nn::loss::cross_entropy_ahead: ", how_many(what.by, "row"), " ahead, weight ",
                            what.weight, "; neither is negative"));
  }
  loss_sum of(pass<Env>& pass, view logits, std::int64_t first, double weight, ops::table_part part) override {
    if (!pass.training() || what_.by == 0) return cross_entropy_node<Env>::of(pass, logits, first, weight, part);
    auto rows = this->counted_of(cross_entropy_node<Env>::targets_of(pass, first, logits.extent(0)));
    rows.sum = what_.weight * cross_entropy_node<Env>::of(pass, logits, first, weight * what_.weight, part).sum;
    return rows;
  }

 private:
  typename cross_entropy_node<Env>::numbers targets_of(pass<Env>& pass, std::int64_t first, std::int64_t n) override {
    if (!pass.training() || what_.by == 0) return cross_entropy_node<Env>::targets_of(pass, first, n);
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

template <class Env>
struct node_of<Env, embedding_ahead> {
  using type = detail::embedding_ahead_node<Env>;
};
template <class Env, class Chain>
struct node_of<Env, in_training_of<Chain>> {
  using type = detail::in_training_node<Env>;
};
template <class Env, class Chain>
struct node_of<Env, aside_of<Chain>> {
  using type = detail::aside_node<Env>;
};
template <class Env>
struct node_of<Env, loss::cross_entropy_ahead> {
  using type = detail::cross_entropy_ahead_node<Env>;
};

}  // namespace trireme::nn
