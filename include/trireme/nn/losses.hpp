#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/context_group.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/detail/packed_weights.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/expression.hpp"
#include "trireme/ops/sets/dense.hpp"
#include "trireme/ops/sets/parts.hpp"
#include "trireme/ops/sets/values.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// Losses: the last layer of a model's last unit. The loss of a step is the mean over all rows that are counted, those
/// of all samples, micro-batches and ranks together; so it does not depend on how samples are dealt out. (PyTorch's
/// DistributedDataParallel averages the means of its ranks, which weighs a rank with few counted rows as much as one
/// with many.) For prediction there is no loss: the outputs are the last row of each sample.
///
/// Errors   config_error for targets whose number or type does not fit.
namespace loss {

/// -log softmax(x)[target]: targets are int32, one a row. A row whose target is below 0, or `ignored`, is not counted:
/// it adds nothing to the loss and has a gradient of 0.
///
/// With `smoothing` s a row's loss is (1 - s) times that of its target and s times the mean of those of all classes
/// [Szegedy et al., "Rethinking the Inception architecture", 2016]. With `z` it also has z * log(sum(exp(x)))^2, which
/// keeps logits from drifting [Chowdhery et al., "PaLM", 2022].
///
/// Numerics a sum in double over rows in order. The number of counted rows is known once all ranks have voted;
///          gradients are divided by it then, when they are applied.
/// With `of_first` a sample has one target, and its first row alone is compared with it: that of a classifier's token.
/// Prediction then gives the first row of each sample.
///
/// Errors   config_error for a smoothing outside of [0, 1], and for a negative z.
struct cross_entropy {
  TRIREME_NEEDS_KERNELS("nn::loss::cross_entropy", dense);
  static constexpr nn::flow flow = nn::flow::loss;
  std::int32_t ignored = -1;
  double smoothing = 0;
  double z = 0;
  bool of_first = false;
  TRIREME_EXACT_BEGIN
  friend bool operator==(cross_entropy const&, cross_entropy const&) = default;
  TRIREME_EXACT_END
};

/// The mean of (x - target)^2 over a row's numbers; targets are float, as many as there are numbers.
struct squared_error {
  TRIREME_NEEDS_KERNELS("nn::loss::squared_error", dense);
  static constexpr nn::flow flow = nn::flow::loss;
  friend bool operator==(squared_error const&, squared_error const&) = default;
};

/// The mean over a row's numbers x of -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)): each number is the logit of a
/// yes-or-no answer of its own, its target t the probability of yes. Targets are float in [0, 1], as many as there are
/// numbers.
/// metric::confusion(2) counts the answers of a model with one output: yes is above 0.
///
/// Numerics by log1p(exp(-|x|)) in double, so no logit is too large.
/// Errors   config_error for a target outside of [0, 1], NaN among them.
struct binary_cross_entropy {
  TRIREME_NEEDS_KERNELS("nn::loss::binary_cross_entropy", dense);
  static constexpr nn::flow flow = nn::flow::loss;
  friend bool operator==(binary_cross_entropy const&, binary_cross_entropy const&) = default;

  [[nodiscard]] static double value(double x, double target) { return ops::logistic_loss(x, target); }
  [[nodiscard]] static double slope(double x, double target) noexcept { return ops::logistic_slope(x, target); }
};

/// A loss of your own: the mean over a row's numbers of value(x, target), whose derivative by x is slope(x, target).
/// Both take and return double; targets are as for squared_error. Ranks and checkpoints compare the name `called`,
/// because functions cannot be printed. Two are equal if their functions and names are; functions without a state
/// (lambdas that capture nothing) are equal if they have the same type.
/// @example nn::loss::each{[](double x, double t) { return std::cosh(x - t) - 1; },
///                         [](double x, double t) { return std::sinh(x - t); }, "cosh"}
template <class Value, class Slope>
struct each {
  TRIREME_NEEDS_KERNELS("nn::loss::each", values);
  static constexpr nn::flow flow = nn::flow::loss;
  Value value;
  Slope slope;
  std::string called{};

  friend bool operator==(each const& a, each const& b) noexcept {
    return same(a.value, b.value) && same(a.slope, b.slope) && a.called == b.called;
  }

 private:
  template <class F>
  static bool same([[maybe_unused]] F const& a, [[maybe_unused]] F const& b) noexcept {
    if constexpr (std::is_empty_v<F>) {
      return true;
    } else {
      static_assert(std::equality_comparable<F>,
                    "trireme::nn::loss::each: functions that have a state need an operator== to be compared");
      return a == b;
    }
  }
};
template <class Value, class Slope>
each(Value, Slope) -> each<Value, Slope>;
template <class Value, class Slope>
each(Value, Slope, std::string) -> each<Value, Slope>;

[[nodiscard]] inline std::string to_string(cross_entropy const& it) {
  if (it == cross_entropy{}) return "cross_entropy";
  return text("cross_entropy{.ignored = ", it.ignored, ", .smoothing = ", it.smoothing, ", .z = ", it.z,
              it.of_first ? ", .of_first = true}" : "}");
}
[[nodiscard]] inline std::string to_string(squared_error const&) { return "squared_error"; }
[[nodiscard]] inline std::string to_string(binary_cross_entropy const&) { return "binary_cross_entropy"; }
template <class Value, class Slope>
[[nodiscard]] std::string to_string(each<Value, Slope> const& it) {
  return it.called.empty() ? "each" : text("each(", it.called, ")");
}

}  // namespace loss

/// The product with a vocabulary's table, right before the loss. Both work on a chunk of rows at a time, so that the
/// logits of all rows are never in memory together.
///
/// Shapes   x (rows, channels), the table (words, channels), with `bias` one number a word.
/// Ranks    each rank of a tensor group has the table's rows, and so the logits, of some words.
/// Bytes    chunk * words numbers of scratch memory; saves the gradient of x (rows, channels).
/// Numerics in training forward also forms the gradients, while it has the logits: three products, where backward would
///          need a fourth to compute them again. So nothing is left for a second half.
/// Errors   config_error for no words, and for a tensor group with another loss than cross_entropy, or of more ranks
///          than words.
struct unembedding {
  TRIREME_NEEDS_KERNELS("nn::unembedding", dense);
  static constexpr nn::flow flow = nn::flow::words;
  std::int64_t words = 0;
  std::string tied{};  ///< the full name of an embedding's table to use; empty: a table of its own
  initial start{initial::distribution::normal, 0.02};
  bool bias = false;
  friend bool operator==(unembedding const&, unembedding const&) = default;
};

/// A loss in a unit's run state. It takes all rows at once, or behind an unembedding one chunk of rows after the other.
template <class Env>
class loss_node : public node<Env> {
 public:
  using typename node<Env>::view;
  using typename node<Env>::space;
  using losses = losses_in<space>;

  loss_node() : node<Env>({}) { this->loss_ = this; }
  [[nodiscard]] layer_traits traits() const final { return {.does = flow::loss}; }
  [[nodiscard]] view starts(pass<Env> const& pass) final { return gradient_[pass]; }

  /// Throws config_error unless the batch has targets for `rows` rows of `outputs` numbers.
  virtual void expect(pass<Env> const& pass, std::int64_t rows, std::int64_t outputs) const = 0;
  /// The loss of the rows y, which are those from `first` on. Where backward follows y is overwritten by `weight` times
  /// its gradient.
  /// @param part  which of the outputs lie here; part.whole = 0: all.
  [[nodiscard]] virtual losses of(pass<Env>& pass, view y, std::int64_t first, double weight,
                                  ops::table_range part) = 0;

  /// Whether it is a loss of rows that have a target, and decides itself which rows are counted; else all rows are.
  [[nodiscard]] virtual bool is_of_targets() const noexcept { return false; }
  /// Adds the result of of() to the loss of the pass.
  ///
  /// In nn::auxiliary_loss rows are not counted again. The rows of a loss of targets weigh as much as those that the
  /// model's loss counts; of another loss the mean over all rows is added.
  /// @param rows  lie here, of all samples together.
  void add_loss(pass<Env>& pass, losses const& found, std::int64_t rows) const {
    if (!auxiliary_) {
      pass.loss += found;
    } else if (is_of_targets()) {
      pass.loss.add_without_rows(found);
    } else {
      auto const each = rows_of_sample(pass, rows);
      pass.loss.add_without_rows(found, static_cast<double>(each), pass.rows_of_loss(each));
    }
  }
  [[nodiscard]] loss_sum rows_of_loss(samples const& batch) const override {
    return {0, batch.targets.size() / std::max<std::int64_t>(1, outputs_), 0};
  }
  /// Takes what it needs from its place. Called also where the layer before it does its work.
  void stand(placing<Env> const& at, std::int64_t outputs) noexcept {
    auxiliary_ = at.auxiliary;
    outputs_ = outputs;
  }

  /// The row of each sample that outputs are taken of: the last one, or the first.
  [[nodiscard]] virtual bool takes_first() const noexcept { return false; }

  /// Whether of() takes rows of which only some of the outputs lie here.
  [[nodiscard]] virtual bool takes_parts() const noexcept { return false; }
  /// Whether of() takes rows that are longer than the outputs, so that each begins at an aligned address
  /// (ops::row_of_logits). The numbers after the outputs have no meaning, and no gradient.
  [[nodiscard]] virtual bool takes_longer_rows() const noexcept { return false; }

  /// Numbers of a row that have a meaning.
  [[nodiscard]] std::int64_t outputs() const noexcept { return outputs_; }

  /// The weight of one row in the loss that backward differentiates. `rows` lie here, of all samples together.
  [[nodiscard]] double weight_of_row(pass<Env> const& pass, std::int64_t rows) const {
    auto const weight = auxiliary_ && !is_of_targets() ? pass.weight_of_sample() : pass.weight;
    return weight / static_cast<double>(rows_of_sample(pass, rows));
  }
  /// A copy of the row of each sample that is its output, among the activations.
  [[nodiscard]] view output_rows(pass<Env>& pass, view all) const {
    if (pass.paged != nullptr) return wanted_rows(pass, all);
    auto const count = pass.batch.count();
    auto const each = count == 0 ? 1 : all.extent(0) / count;
    auto const last = pass.take({count, all.extent(1)});
    if (each == 1) {
      ops::on<space>::copy(last, all);
      return last;
    }
    auto const which = takes_first() ? 0 : each - 1, width = all.extent(1);
    ops::on<space>::copy_columns(last, 0, all.reshaped({count, each * width}), which * width, width);
    return last;
  }

  detail::held<Env> forward(pass<Env>& pass, detail::held<Env> x, detail::arena_of<Env>& to, view) final {
    if (pass.purpose == purpose::predict) return {output_rows(pass, x.v), true};
    expect(pass, x.v.extent(0), x.v.extent(1));
    auto& y = gradient_[pass];
    y = x.v;
    if (pass.backward_follows() && !x.ours) {
      y = to.template take<typename Env::compute>(x.v.extents());
      ops::on<space>::copy(y, x.v);
    }
    add_loss(pass, of(pass, y, 0, weight_of_row(pass, y.extent(0)), {}), y.extent(0));
    auto const here = pass.group.rows_here(y.extent(0));
    y = y.rows(here.first, here.count);
    return {};
  }

 private:
  // Of a pass over rows of many sequences: those that it asks for.
  [[nodiscard]] static view wanted_rows(pass<Env>& pass, view all) {
    auto const& wanted = pass.paged->outputs;
    auto const out = pass.take({static_cast<std::int64_t>(wanted.size()), all.extent(1)});
    for (std::size_t i = 0; i < wanted.size();) {  // rows that lie one after the other are copied together
      auto end = i + 1;
      while (end < wanted.size() && wanted[end] == wanted[end - 1] + 1) ++end;
      auto const count = static_cast<std::int64_t>(end - i);
      ops::on<space>::copy(out.rows(static_cast<std::int64_t>(i), count), all.rows(wanted[i], count));
      i = end;
    }
    return out;
  }
  // Of a whole sample, on all ranks that share its positions.
  [[nodiscard]] static std::int64_t rows_of_sample(pass<Env> const& pass, std::int64_t rows) {
    return context_group<Env>::of(pass).part().whole(rows / std::max<std::int64_t>(1, pass.batch.count()));
  }
  void do_place(placing<Env>& at, layer_step const&) final { stand(at, at.width); }
  detail::per_micro_batch<view> gradient_;
  std::int64_t outputs_ = 1;  // numbers in a row
  bool auxiliary_ = false;
};

namespace detail {

template <class Env>
class layer_node<Env, loss::cross_entropy> : public loss_node<Env> {
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;
  using typename loss_node<Env>::losses;
  using numbers = tensor_view<std::int32_t const, typename Env::space>;

  explicit layer_node(loss::cross_entropy const& what)
      : terms_{what.ignored, what.smoothing, what.z}, of_first_(what.of_first) {
    if (what.smoothing >= 0 && what.smoothing <= 1 && what.z >= 0) return;
    throw config_error(text("trireme::nn::loss::cross_entropy: smoothing ", what.smoothing, ", z ", what.z,
                            "; smoothing lies in [0, 1], and z is not negative"));
  }
  [[nodiscard]] bool takes_parts() const noexcept override { return true; }
  [[nodiscard]] bool takes_longer_rows() const noexcept override { return !of_first_; }
  [[nodiscard]] bool takes_first() const noexcept override { return of_first_; }
  [[nodiscard]] bool is_of_targets() const noexcept override { return true; }
  [[nodiscard]] loss_sum rows_of_loss(samples const& batch) const override { return counted_of(labels_of(batch)); }
  void expect(pass<Env> const& pass, std::int64_t rows, std::int64_t) const override {
    auto const targets = labels_of(pass.batch).size();
    if (of_first_ && targets != pass.batch.count()) {
      throw config_error(text("trireme::nn::loss::cross_entropy: ", how_many(targets, "target"),
                              " for the first rows of ", how_many(pass.batch.count(), "sample"),
                              "; give each sample one"));
    }
    if (!of_first_ && targets != rows)
      throw config_error(
          text("trireme::nn::loss::cross_entropy: ", how_many(targets, "target"), " for ", how_many(rows, "row")));
  }
  losses of(pass<Env>& pass, view logits, std::int64_t first, double weight, ops::table_range part) override {
    auto const n = logits.extent(0);
    if (!of_first_) return of_rows(pass, logits, first, n, weight, part);
    // Rows are weighed as one of all of their sample's; only the first of each has a loss, so it has all of the weight.
    auto const each = positions_of(pass), words = logits.extent(1);
    auto const sample = (first + each - 1) / each;  // the first one whose first row lies here
    auto const count = (first + n + each - 1) / each - sample;
    auto const mark = pass.scratch.mark();
    auto const rows = pass.scratch.template take<typename Env::compute>({count, words});
    ops::block_places const packed{0, words, words}, spread{(sample * each - first) * words, each * words, words};
    kernels::copy_blocks(rows, packed, logits, spread, {count, 1, words});
    auto const sum =
        count == 0 ? losses{} : of_rows(pass, rows, sample, count, weight * static_cast<double>(each), part);
    if (pass.backward_follows()) {
      kernels::fill(logits, 0.0);
      kernels::copy_blocks(logits, spread, rows, packed, {count, 1, words});
    }
    pass.scratch.rewind(mark);
    return sum;
  }

 protected:
  /// The targets of a batch. Probabilities are refused: as integers they would say something else.
  template <class Batch>
  [[nodiscard]] static auto labels_of(Batch const& batch) {
    auto const& targets = batch.targets;
    if (targets.type != dtype::i32 && !targets.empty()) {
      throw config_error(text("trireme::nn::loss::cross_entropy: the targets are ", name_of(targets.type), " ",
                              to_string(targets.extents),
                              ", but a label is an I32; for probabilities of classes, as data::one_hot and data::mixup "
                              "make them, train nn::soft_labels(model)"));
    }
    return targets.template as<std::int32_t>("targets");
  }
  /// How many rows with these targets are counted, and how many are left out.
  template <class Space>
  [[nodiscard]] loss_sum counted_of(tensor_view<std::int32_t const, Space> targets) const {
    if constexpr (without_elements<typename Env::space>) {
      return {0, targets.size(), 0};  // there are no numbers
    } else if constexpr (std::is_same_v<Space, host>) {
      loss_sum rows;
      for (auto const target : targets.span()) ++(terms_.leaves_out(target) ? rows.left_out : rows.count);
      return rows;
    } else {
      std::vector<std::int32_t> here(static_cast<std::size_t>(targets.size()));
      kernels::download(std::span(here), targets);
      return counted_of(tensor_view<std::int32_t const>(here.data(), {targets.size()}));
    }
  }
  /// The targets of n rows, from `first` on.
  [[nodiscard]] virtual numbers targets_of(pass<Env>& pass, std::int64_t first, std::int64_t n) {
    return labels_of(pass.batch).flat().flat(first, n);
  }

 private:
  losses of_rows(pass<Env>& pass, view logits, std::int64_t first, std::int64_t n, double weight,
                 ops::table_range part) {
    auto const targets = targets_of(pass, first, n);
    if (pass.group.size() == 1 || part.whole == 0) {
      if constexpr (ops::has_longer_rows_of_logits<space>) {
        auto const words = of_first_ ? logits.extent(1) : this->outputs();
        return kernels::cross_entropy(logits, targets, weight, pass.backward_follows(), terms_, words);
      } else {
        return kernels::cross_entropy(logits, targets, weight, pass.backward_follows(), terms_);
      }
    }
    if constexpr (ops::parts_kernels<space, Env>)
      return of_parts(pass, logits, targets, weight, part);
    else
      throw config_error(
          "trireme::nn::loss::cross_entropy: this memory space has no kernels for words on several ranks "
          "(ops::parts_kernels)");
  }
  losses of_parts(pass<Env>& pass, view logits, numbers targets, double weight, ops::table_range part) {
    auto const n = targets.size();
    // The maximum and the sum of exponentials are over the group; the target's logit comes from the rank that has it.
    auto const here = pass.scratch.mark();
    auto const peaks = pass.scratch.template take<typename Env::accumulate>({n});
    auto const both = pass.scratch.template take<typename Env::accumulate>({2 * n});
    auto const masses = both.flat(0, n);
    auto const chosen = both.flat(n, n);
    kernels::row_peaks(logits, peaks);
    pass.group.max(peaks);
    kernels::row_masses(logits, targets, part, peaks, masses, chosen, terms_);
    pass.group.sum(both);
    auto const loss = kernels::cross_entropy_part(logits, targets, part, peaks, masses, chosen, weight,
                                                  pass.backward_follows(), terms_);
    pass.scratch.rewind(here);
    return loss;
  }

  ops::cross_entropy_terms terms_;
  bool of_first_ = false;
};

/// Losses that compare number by number: squared_error, binary_cross_entropy and each.
template <class Loss>
concept compares_numbers = std::is_same_v<Loss, loss::squared_error> || requires(Loss const& loss) {
  { loss.value(0.0, 0.0) } -> std::convertible_to<double>;
};
template <class Env, compares_numbers Loss>
class layer_node<Env, Loss> final : public loss_node<Env> {
  using kernels = ops::on<typename Env::space>;
  using value = typename Env::compute;

 public:
  using typename node<Env>::view;
  using typename loss_node<Env>::losses;

  explicit layer_node(Loss const& what) : what_(what) {}
  void expect(pass<Env> const& pass, std::int64_t rows, std::int64_t outputs) const override {
    auto const& targets = pass.batch.targets;
    if (targets.size() == rows * outputs) return;
    throw config_error(text("trireme::nn::loss: targets of shape ", to_string(targets.extents),
                            " for outputs of shape (", rows, ", ", outputs,
                            "); give each sample as many targets as the model has outputs"));
  }
  losses of(pass<Env>& pass, view y, std::int64_t first, double weight, ops::table_range) override {
    return with_numbers<Env>(pass.batch.targets, "targets", [&](auto targets) {
      return of(y, targets.flat().flat(first * y.extent(1), y.size()), pass.backward_follows() ? y : view{}, weight);
    });
  }

 private:
  template <class Targets>
  losses of(view y, Targets targets, view dy, double weight) {
    if constexpr (std::is_same_v<Loss, loss::binary_cross_entropy>) {
      return kernels::binary_cross_entropy(dy, y, targets, weight);
    } else if constexpr (requires { what_.value(0.0, 0.0); }) {
      auto const outputs = y.extent(1);
      loss_sum sum{0, y.extent(0)};
      kernels::with_values(
          [&](auto out, auto from, auto wanted) {
            double const each = weight / static_cast<double>(outputs);
            for (std::size_t i = 0; i < from.size(); ++i) {
              auto const at = static_cast<double>(from[i]), to = static_cast<double>(wanted[i]);
              sum.sum += what_.value(at, to) / static_cast<double>(outputs);
              if (!out.empty()) out[i] = value(static_cast<typename Env::accumulate>(each * what_.slope(at, to)));
            }
          },
          dy, y, targets);
      return sum;
    } else {
      return kernels::squared_error(dy, y, targets, weight);
    }
  }

  [[no_unique_address]] Loss what_;
};

template <class Env>
class layer_node<Env, unembedding> final : public library_node<Env, unembedding> {
  using library_node<Env, unembedding>::what_;
  using value = typename Env::compute;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  using library_node<Env, unembedding>::library_node;
  void visit(parameter_visitor<Env> const& each) override {
    each(table_);
    if (what_.bias) each(bias_);
  }
  [[nodiscard]] view starts(pass<Env> const& pass) override { return gradient_[pass]; }

  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>&, view) override {
    auto const rows = x.v.extent(0);
    auto const start = pass.scratch.mark();
    auto& words =
        packed_weights(packed_, pass, table_.info.name, table_.value, product::forward, ops::orientation::out_in, true);
    if (pass.purpose == purpose::predict) {
      held<Env> const logits{last_logits(pass, x.v), true};
      pass.scratch.rewind(start);
      return logits;
    }
    loss_->expect(pass, rows, what_.words);
    double const weight = loss_->weight_of_row(pass, rows);
    view dx;
    if (pass.backward_follows()) dx = pass.take(x.v.extents());
    auto& back = pass.backward_follows() ? packed_back(pass) : words;
    auto const longer = &back == &words && pass.group.size() == 1 && loss_->takes_longer_rows();
    auto const row = longer ? ops::row_of_logits<space>(words_here()) : words_here();
    auto const logits = pass.scratch.template take<value>({std::min(chunk(), rows), row});
    for (std::int64_t first = 0; first < rows; first += chunk()) {
      auto const n = std::min(chunk(), rows - first);
      auto const part = logits.rows(0, n);
      auto const here = pass.scratch.mark();
      kernels::linear(part, operand(pass, role::input, x.v.rows(first, n)), words, {bias_.value});
      pass.scratch.rewind(here);
      loss_->add_loss(pass, loss_->of(pass, part, first, weight, part_), rows);
      if (!pass.backward_follows()) continue;
      kernels::linear_backward_input(dx.rows(first, n), operand(pass, role::gradient, part, product::input_gradient),
                                     back, {});
      pass.scratch.rewind(here);
      if (!pass.training()) continue;
      backward_weights(pass, table_.info.name, table_.gradient, bias_.gradient, x.v.rows(first, n), part,
                       ops::orientation::out_in, true);
    }
    pass.scratch.rewind(start);
    if (pass.backward_follows()) gradient_[pass] = pass.group.reduce(partial_sum<view>(dx));
    return {};
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    loss_ = at.loss;
    loss_->stand(at, what_.words);
    if (at.own.size > 1 && !loss_->takes_parts()) {
      throw config_error(
          "trireme::nn::unembedding: parallel::tensor cuts its words, and the loss behind it needs all of them; take "
          "loss::cross_entropy, or nn::linear in its place");
    }
    table_ = word_table("unembedding", at, what_.tied.empty() ? at.name + ".weight" : what_.tied,
                        {what_.words, at.width}, what_.start);
    part_ = {at.own.of(what_.words).first, what_.words};
    at.counted.product(at.width, what_.words);
    bias_.info = {at.name + ".bias", {what_.words}, {}, false};
    if (at.own.size > 1) bias_.info = shard_of(bias_.info, 0, at.own.of(what_.words));
    at.width = what_.words;
  }
  using product = product_operand::product;
  using role = product_operand::role;
  // What products read: numbers as they are, or the operands of heads that the precision writes.
  [[nodiscard]] view operand(pass<Env>& pass, role which, view x, product of = product::forward) {
    return pass.operand(table_.info.name, which, x, of, true);
  }
  ops::weights<value, space>& packed_back(pass<Env>& pass) {
    auto const read = operand(pass, role::weight, table_.value, product::input_gradient);
    if (read.address() == table_.value.address()) return packed_;
    packed_back_.bind(read, ops::orientation::out_in);
    packed_back_.refresh(pass.version | ops::passing_values);
    return packed_back_;
  }
  // How many words lie here.
  [[nodiscard]] std::int64_t words_here() const { return table_.info.extents[0]; }
  [[nodiscard]] std::int64_t chunk() const { return ops::rows_of_logits<space>(what_.words); }
  // The logits after each sample's last row, of all words, on every rank: (B, words).
  view last_logits(pass<Env>& pass, view x) {
    auto const last = loss_->output_rows(pass, x);
    auto const batch = last.extent(0);
    auto const here = pass.take({batch, words_here()});
    kernels::linear(here, operand(pass, role::input, last), packed_, {bias_.value});
    if (pass.group.size() == 1) return here;
    auto const sums = pass.activations.template take<typename Env::accumulate>({batch, what_.words});
    kernels::fill(sums, 0.0);
    kernels::copy_columns(sums, part_.first, here, 0, words_here());
    pass.group.sum(sums);
    auto const logits = pass.take({batch, what_.words});
    kernels::copy(logits, sums);
    return logits;
  }

  loss_node<Env>* loss_ = nullptr;
  ops::table_range part_;
  parameter<Env> table_{}, bias_{};
  ops::weights<value, space> packed_, packed_back_;
  per_micro_batch<view> gradient_;  // of x, in the rows that lie here
};

}  // namespace detail

}  // namespace trireme::nn
