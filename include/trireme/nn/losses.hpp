#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "trireme/contract/context_group.hpp"
#include "trireme/core/error.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/expression.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// What a model's last unit ends in. The loss of a sample is the mean of those of its rows; where a model predicts, the
/// outputs are each sample's last row.
///
/// Errors   config_error for targets that are not as many, or of another type.
namespace loss {

/// -log softmax(x)[target]: targets are whole numbers, one a row; one below 0 is left out.
/// Numerics a sum in double over rows in order.
struct cross_entropy {
  static constexpr nn::flow flow = nn::flow::loss;
  friend bool operator==(cross_entropy const&, cross_entropy const&) = default;
};

/// The mean of (x - target)^2 over a row's numbers: as many targets a row.
struct squared_error {
  static constexpr nn::flow flow = nn::flow::loss;
  friend bool operator==(squared_error const&, squared_error const&) = default;
};

/// One's own: the mean over a row's numbers of value(x, target), whose derivative by x is slope(x, target). Both take
/// and give doubles.
/// @example nn::loss::each{[](double x, double t) { return std::cosh(x - t) - 1; },
///                         [](double x, double t) { return std::sinh(x - t); }}
template <class Value, class Slope>
struct each {
  static constexpr nn::flow flow = nn::flow::loss;
  Value value;
  Slope slope;
};
template <class Value, class Slope>
each(Value, Slope) -> each<Value, Slope>;

}  // namespace loss

/// The product with a table of words, before a loss: a chunk of rows at a time, so that the numbers of a large
/// vocabulary are never all in memory.
///
/// Shapes   x (rows, channels), the table (words, channels).
/// Ranks    each of a tensor group has the numbers of some words.
/// Bytes    chunk * words numbers of scratch; saves the gradient of x (rows, channels).
/// Numerics in training forward also forms the gradients, while the numbers are there: three products instead of four.
///          So its backward has no second half.
struct unembedding {
  static constexpr nn::flow flow = nn::flow::words;
  std::int64_t words = 0;
  std::string tied{};  ///< the name of an embedding's table, which is this one, too; empty: it has its own
  initial start{initial::distribution::normal, 0.02};
  friend bool operator==(unembedding const&, unembedding const&) = default;
};

/// A loss in a unit's run state: by itself it takes all rows at once, behind a product with a table chunks of them.
template <class Env>
class loss_node : public node<Env> {
 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  loss_node() { this->facts_.loss = true; }
  [[nodiscard]] layer_says says() const final { return {.does = flow::loss}; }
  [[nodiscard]] loss_node* as_loss() final { return this; }
  [[nodiscard]] view starts(pass<Env> const& pass) final { return gradient_[pass]; }

  /// Throws config_error unless the batch has the targets of rows of so many outputs.
  virtual void expect(pass<Env> const& pass, std::int64_t rows, std::int64_t outputs) const = 0;
  /// The loss of the rows y, from row `first` of all on. In training they become its gradient times `weight`.
  /// @param part  of the outputs, that lie here; part.whole = 0: all.
  [[nodiscard]] virtual loss_sum of(pass<Env>& pass, view y, std::int64_t first, double weight,
                                    ops::table_part part) = 0;

  /// Whether of() takes rows of which only some of the outputs lie here.
  [[nodiscard]] virtual bool takes_parts() const noexcept { return false; }

  /// Of each of `rows` rows in the loss that is differentiated.
  [[nodiscard]] static double weight_of_row(pass<Env> const& pass, std::int64_t rows) {
    auto const& positions = context_group<Env>::of(pass).part();
    return pass.weight / static_cast<double>(positions.whole(rows / std::max<std::int64_t>(1, pass.batch.count())));
  }
  /// The last row of each sample, where no other pass writes.
  [[nodiscard]] static view last_rows(pass<Env>& pass, view all) {
    auto const count = pass.batch.count();
    auto const each = count == 0 ? 1 : all.extent(0) / count;
    auto const last = pass.take({count, all.extent(1)});
    if (each == 1) {
      ops::on<space>::copy(last, all);
      return last;
    }
    for (std::int64_t b = 0; b < count; ++b) ops::on<space>::copy(last.rows(b, 1), all.rows(b * each + each - 1, 1));
    return last;
  }

  detail::held<Env> forward(pass<Env>& pass, detail::held<Env> x, arena<space>& to, view) final {
    if (pass.purpose == purpose::predict) return {last_rows(pass, x.v), true};
    expect(pass, x.v.extent(0), x.v.extent(1));
    auto& y = gradient_[pass];
    y = x.v;
    if (pass.training() && !x.ours) {
      y = to.template take<typename Env::compute>(x.v.extents());
      ops::on<space>::copy(y, x.v);
    }
    pass.loss += of(pass, y, 0, weight_of_row(pass, y.extent(0)), {});
    auto const here = pass.group.rows_here(y.extent(0));
    y = y.rows(here.first, here.count);
    return {};
  }

 private:
  void do_place(placing<Env>&, layer_step const&) final {}
  detail::per_slot<view> gradient_;
};

namespace detail {

template <class Env>
class cross_entropy_node final : public loss_node<Env> {
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;

  explicit cross_entropy_node(loss::cross_entropy const&) {}
  [[nodiscard]] bool takes_parts() const noexcept override { return true; }
  void expect(pass<Env> const& pass, std::int64_t rows, std::int64_t) const override {
    auto const targets = pass.batch.targets.template as<std::int32_t>().size();
    if (targets != rows)
      throw config_error(text("trireme::nn::loss::cross_entropy: ", targets, " targets for ", rows, " rows"));
  }
  loss_sum of(pass<Env>& pass, view logits, std::int64_t first, double weight, ops::table_part part) override {
    auto const n = logits.extent(0);
    auto const targets = pass.batch.targets.template as<std::int32_t>().flat().flat(first, n);
    if (pass.group.size() == 1 || part.whole == 0)
      return kernels::cross_entropy(logits, targets, weight, pass.training());
    // The largest number and the sum of exponentials are the group's, the target's comes from whoever has it.
    auto const here = pass.scratch.mark();
    auto const peaks = pass.scratch.template take<typename Env::accumulate>({n});
    auto const both = pass.scratch.template take<typename Env::accumulate>({2 * n});
    auto const masses = both.flat(0, n);
    auto const chosen = both.flat(n, n);
    kernels::row_peaks(logits, peaks);
    pass.group.max(peaks);
    kernels::row_masses(logits, targets, part, peaks, masses, chosen);
    pass.group.sum(both);
    auto const loss =
        kernels::cross_entropy_part(logits, targets, part, peaks, masses, chosen, weight, pass.training());
    pass.scratch.rewind(here);
    return loss;
  }
};

/// Of losses number by number.
template <class Env, class Loss>
class regression_node final : public loss_node<Env> {
  using kernels = ops::on<typename Env::space>;
  using value = typename Env::compute;

 public:
  using typename node<Env>::view;

  explicit regression_node(Loss const& what) : what_(what) {}
  void expect(pass<Env> const& pass, std::int64_t rows, std::int64_t outputs) const override {
    auto const targets = pass.batch.targets.template as<float>();
    if (targets.size() == rows * outputs) return;
    throw config_error(text("trireme::nn::loss: targets of shape ", to_string(targets.extents()),
                            " for outputs of shape (", rows, ", ", outputs,
                            "); give each sample as many targets as the model has outputs"));
  }
  loss_sum of(pass<Env>& pass, view y, std::int64_t first, double weight, ops::table_part) override {
    auto const outputs = y.extent(1);
    auto const targets = pass.batch.targets.template as<float>().flat().flat(first * outputs, y.size());
    auto const dy = pass.training() ? y : view{};
    if constexpr (requires { what_.value; }) {
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

 private:
  [[no_unique_address]] Loss what_;
};

template <class Env>
class unembedding_node final : public node<Env> {
  using value = typename Env::compute;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit unembedding_node(unembedding const& what) : what_(what) { this->facts_.loss = true; }
  [[nodiscard]] layer_says says() const override { return {.does = flow::words}; }
  [[nodiscard]] std::int64_t width(std::int64_t) const override { return what_.words; }
  void visit(parameter_visitor<Env> const& each) override { each(table_); }
  [[nodiscard]] view starts(pass<Env> const& pass) override { return gradient_[pass]; }

  held<Env> forward(pass<Env>& pass, held<Env> x, arena<space>&, view) override {
    auto const rows = x.v.extent(0);
    packed_.bind(table_.value, ops::orientation::out_in);
    packed_.refresh(pass.version);
    if (pass.purpose == purpose::predict) return {last_logits(pass, x.v), true};
    loss_->expect(pass, rows, what_.words);
    double const weight = loss_node<Env>::weight_of_row(pass, rows);
    view dx;
    if (pass.training()) dx = pass.take(x.v.extents());
    auto const here = pass.scratch.mark();
    auto const logits = pass.scratch.template take<value>({std::min(chunk(), rows), words_here()});
    for (std::int64_t first = 0; first < rows; first += chunk()) {
      auto const n = std::min(chunk(), rows - first);
      auto const part = logits.rows(0, n);
      kernels::linear(part, x.v.rows(first, n), packed_, {});
      pass.loss += loss_->of(pass, part, first, weight, part_);
      if (!pass.training()) continue;
      kernels::linear_backward_input(dx.rows(first, n), part, packed_, {});
      kernels::linear_backward_weight(table_.gradient, {}, x.v.rows(first, n), part, ops::orientation::out_in);
    }
    pass.scratch.rewind(here);
    if (pass.training()) gradient_[pass] = pass.group.reduce(partial_sum<view>(dx));
    return {};
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    loss_ = at.loss;
    if (at.own.size > 1 && !loss_->takes_parts()) {
      throw config_error(
          "trireme::nn::unembedding: parallel::tensor cuts its words, and the loss behind it needs all of them; take "
          "loss::cross_entropy, or nn::linear in its place");
    }
    table_ =
        word_table(at, what_.tied.empty() ? at.name + ".weight" : what_.tied, {what_.words, at.width}, what_.start);
    part_ = {at.own.of(what_.words).first, what_.words};
    at.width = what_.words;
  }
  // Of the words that lie here.
  [[nodiscard]] std::int64_t words_here() const { return table_.info.extents[0]; }
  // About 4 MiB of float numbers, but enough rows to keep the products busy.
  [[nodiscard]] std::int64_t chunk() const {
    return std::clamp<std::int64_t>((std::int64_t{1} << 20) / what_.words / 64 * 64, 256, 4096);
  }
  // What follows each sample: (B, words).
  view last_logits(pass<Env>& pass, view x) {
    auto const last = loss_node<Env>::last_rows(pass, x);
    auto const batch = last.extent(0);
    auto const here = pass.take({batch, words_here()});
    kernels::linear(here, last, packed_, {});
    if (pass.group.size() == 1) return here;
    auto const sums = pass.activations.template take<typename Env::accumulate>({batch, what_.words});
    kernels::fill(sums, 0.0);
    for (std::int64_t b = 0; b < batch; ++b) {
      kernels::copy(sums.flat(b * what_.words + part_.first, words_here()), here.flat(b * words_here(), words_here()));
    }
    pass.group.sum(sums);
    auto const logits = pass.take({batch, what_.words});
    kernels::copy(logits, sums);
    return logits;
  }

  unembedding what_;
  loss_node<Env>* loss_ = nullptr;
  ops::table_part part_;
  parameter<Env> table_{};
  ops::weights<value, space> packed_;
  per_slot<view> gradient_;  // of x, the rows that lie here
};

}  // namespace detail

template <class Env>
struct node_of<Env, loss::cross_entropy> {
  using type = detail::cross_entropy_node<Env>;
};
template <class Env>
struct node_of<Env, loss::squared_error> {
  using type = detail::regression_node<Env, loss::squared_error>;
};
template <class Env, class Value, class Slope>
struct node_of<Env, loss::each<Value, Slope>> {
  using type = detail::regression_node<Env, loss::each<Value, Slope>>;
};
template <class Env>
struct node_of<Env, unembedding> {
  using type = detail::unembedding_node<Env>;
};

}  // namespace trireme::nn
