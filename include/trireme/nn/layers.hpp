#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/contract/context_group.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/nn/detail/attention.hpp"
#include "trireme/nn/detail/drop_columns.hpp"
#include "trireme/nn/detail/low_rank.hpp"
#include "trireme/nn/detail/own_rows.hpp"
#include "trireme/nn/detail/packed_weights.hpp"
#include "trireme/nn/expression.hpp"
#include "trireme/ops/sets/heads.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// y = x w + b, with the weight stored (inputs, outputs) as GPT-2 does. An activation is a layer of its own behind it;
/// how a tensor group cuts it follows from its neighbours.
///
/// Shapes   x (rows, inputs), y (rows, outputs), w (inputs, outputs), b (outputs).
/// Bytes    saves x, and a copy of x w + b where an activation follows.
struct linear {
  TRIREME_NEEDS_KERNELS("nn::linear", dense);
  static constexpr layer_traits traits{.does = flow::product, .takes_activation = true};
  std::int64_t inputs = 0;  ///< 0: the width of the layer before it
  std::int64_t outputs = 0;
  initial start{initial::distribution::normal, 0.02};
  initial bias_start{};
  bool bias = true;  ///< false: y = x w
  friend bool operator==(linear const&, linear const&) = default;
};

/// An activation. The product right before it computes it (it is fused), unless that product is cut by rows: the terms
/// of its result have to be summed first.
struct activation {
  TRIREME_NEEDS_KERNELS("nn::activation", dense);
  static constexpr layer_traits traits{.does = flow::any, .activation = true};
  ops::activation kind = ops::activation::none;
  friend bool operator==(activation const&, activation const&) = default;
};
[[nodiscard]] constexpr activation gelu() noexcept { return {ops::activation::gelu}; }
[[nodiscard]] constexpr activation gelu_erf() noexcept { return {ops::activation::gelu_erf}; }
[[nodiscard]] constexpr activation relu() noexcept { return {ops::activation::relu}; }
[[nodiscard]] constexpr activation silu() noexcept { return {ops::activation::silu}; }
[[nodiscard]] constexpr activation tanh() noexcept { return {ops::activation::tanh}; }

/// y = (x - mean(x)) / sqrt(var(x) + epsilon) * gain + bias, row by row.
///
/// Shapes   x, y (rows, channels); gain, bias (channels).
/// Bytes    keeps x, and the mean and 1 / standard deviation of each row.
/// Method   [Ba, Kiros, Hinton, "Layer normalization", 2016].
struct layer_norm {
  TRIREME_NEEDS_KERNELS("nn::layer_norm", dense);
  static constexpr nn::flow flow = nn::flow::rows;
  double epsilon = 1e-5;
  friend bool operator==(layer_norm const&, layer_norm const&) = default;
};

/// y = x / sqrt(mean(x^2) + epsilon) * gain, row by row.
///
/// Shapes   x, y (rows, channels); gain (channels).
/// Bytes    keeps x, and 1 / root of the mean square of each row.
/// Numerics computed in the accumulate type and rounded once.
/// Method   [Zhang, Sennrich, "Root mean square layer normalization", 2019].
struct rms_norm {
  TRIREME_NEEDS_KERNELS("nn::rms_norm", dense);
  static constexpr nn::flow flow = nn::flow::rows;
  double epsilon = 1e-5;
  friend bool operator==(rms_norm const&, rms_norm const&) = default;
};

/// In training each number becomes 0 with this probability, and is divided by 1 - probability otherwise. Which numbers
/// are dropped depends on sample and position alone, not on how ranks share the work.
struct dropout {
  TRIREME_NEEDS_KERNELS("nn::dropout", dense);
  static constexpr nn::flow flow = nn::flow::any;
  double probability = 0;
  friend bool operator==(dropout const&, dropout const&) = default;
};

/// Self-attention of the queries, keys and values that its input has side by side. The products before and behind it
/// are layers of their own.
///
/// A position sees itself and those before it; without `causal` those behind it too; with `window` only those fewer
/// than so many positions away [Beltagy et al., "Longformer", 2020]. With `tokens.padding` no position sees the padding
/// at either end of a sample, with `tokens.separator` none sees another document of a packed sample.
///
/// With `key_heads` (grouped-query attention) each key and its value serve heads / key_heads queries [Ainslie et al.,
/// "GQA", 2023]. With `norm`, queries and keys have RMS norms, as in Qwen 3: two gains, `q_norm.weight` and
/// `k_norm.weight`, that all heads share. With `rotary`, queries and keys are rotated by their positions in whole
/// samples [Su et al., "RoFormer", 2021].
///
/// Shapes   x (rows, 3 * channels), y (rows, channels); head h has columns [h * channels/heads, (h+1) * channels/heads)
///          of each third. With fewer key heads x (rows, (heads + 2 * key_heads) * width), y (rows, heads * width): for
///          each key in turn x has its queries, the key and its value.
/// Ranks    a tensor group cuts between keys: it has at most as many ranks as there are key heads.
/// Bytes    keeps x and y, and a number for each row and head. With fewer key heads it keeps 3 * heads * width numbers
///          a row in place of x, because keys and values are repeated for their queries; context groups send the
///          repeated ones. With `rotary` each pass makes a table of width numbers a position, in scratch memory. With
///          `norm` it keeps x as well as its result, and a number for each row and head of queries and keys.
/// Serving  see staged_engine::predict_rows: keys and values of earlier positions are kept in pages. Needs causal
///          attention without masks by tokens.
/// Errors   config_error for heads that are not a multiple of key_heads, a negative `rotary`, `window` or `norm`, a
///          scaling whose divisor is not positive, columns that do not divide evenly into these heads (with `rotary`:
///          into heads of even width), a tensor group of more ranks than key heads, masks by tokens where a context
///          group cuts samples or inputs are not tokens, and padding between words.
struct attend {
  TRIREME_NEEDS_KERNELS("nn::attend", heads);
  static constexpr nn::flow flow = nn::flow::columns;
  std::int64_t heads = 1;
  double dropout = 0;             ///< of the attention weights
  std::int64_t key_heads = 0;     ///< 0: as many as heads
  double rotary = 0;              ///< base of the angles, 10000 for instance; 0: no rotation
  ops::rotary_scaling scaling{};  ///< of the angles
  bool causal = true;             ///< false: positions also see those behind them
  std::int64_t window = 0;        ///< how many positions back are seen, its own included; 0: all
  double norm = 0;                ///< epsilon of the norms of queries and keys; 0: no norms
  ops::token_mask tokens{};       ///< padding and documents
  friend bool operator==(attend const&, attend const&) = default;
};

namespace detail {

template <class Env>
class layer_node<Env, linear> final : public library_node<Env, linear> {
  using library_node<Env, linear>::what_;
  using value = typename Env::compute;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit layer_node(linear const& what)
      : library_node<Env, linear>(what, {.weights = true, .adds_residual = true, .does_slope = true}) {}
  // The factors of a change come before the weights: who puts them together for files has them when these come.
  void visit(parameter_visitor<Env> const& each) override {
    if (change_) change_->visit(each);
    each(weight_);
    if (what_.bias) each(bias_);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view residual) override {
    auto const y = to.template take<value>({x.v.extent(0), outputs_});
    bool const activates = act_ != ops::activation::none;
    auto& before = before_[pass];
    before = activates && pass.backward_follows() ? pass.take(y.extents()) : view{};
    auto const mark = pass.scratch.mark();
    auto const input = operand(pass, product_operand::role::input, x.v);
    auto const bias = adds_bias_ ? bias_.value : decltype(bias_.value){};
    if (!change_) {
      kernels::linear(y, input, packed(pass), {bias, act_, before, residual});
    } else {  // the activation has to wait for the change
      auto const sum = !activates                ? y
                       : pass.backward_follows() ? before
                                                 : pass.scratch.template take<value>(y.extents());
      kernels::linear(sum, input, packed(pass), {.bias = bias, .residual = residual});
      change_->forward(pass, sum, x.v);
      if (activates) kernels::activate(y, sum, act_);
    }
    pass.scratch.rewind(mark);
    return {y, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env>, view, view dy, target<Env> to, half) override {
    auto const mark = pass.scratch.mark();
    if (change_) change_->backward_input(pass, to.into, dy, to.accumulate);
    kernels::linear_backward_input(to.into, operand(pass, product_operand::role::gradient, dy, for_input),
                                   packed(pass, for_input), {to.act, to.before, to.accumulate || change_.has_value()});
    pass.scratch.rewind(mark);
  }
  void backward_weight(pass<Env>& pass, layer_input<Env> x, view dy) override {
    bool const trains = !weight_.info.frozen;
    if (!trains && !change_) return;
    auto const mark = pass.scratch.mark();
    auto const all = x.get(pass);
    if (change_) change_->backward_weight(pass, all, dy);
    if (trains) {
      backward_weights(pass, weight_.info.name, weight_.gradient.reshaped({inputs_, outputs_}), bias_.gradient, all,
                       dy);
    }
    pass.scratch.rewind(mark);
  }
  [[nodiscard]] fused_activation<Env> fused(pass<Env> const& pass) override { return {act_, before_[pass]}; }

 private:
  void do_place(placing<Env>& at, layer_step const& step) override {
    inputs_ = at.width;
    outputs_ = what_.outputs;
    if (what_.inputs != 0 && what_.inputs != inputs_) {
      throw config_error(text("trireme::nn::linear ", at.name, ": rows of ", how_many(inputs_, "number"),
                              " come in where ", how_many(what_.inputs, "input"), agreeing(what_.inputs, " is", " are"),
                              " said; leave inputs out, or make the layer before it as wide"));
    }
    act_ = at.act;
    weight_.info = {at.name + ".weight", {inputs_, outputs_}, what_.start, true};
    bias_.info = {at.name + ".bias", {outputs_}, what_.bias_start, false};
    if (step.as == role::row_parallel && at.own.size > 1) {
      auto const part = at.part(at.cut, inputs_);
      weight_.info = shard_of(weight_.info, 0, part);
      adds_bias_ = at.own.rank == 0;
      inputs_ = part.count;
    }
    if (step.as == role::column_parallel) {
      auto const wanted = at.taker->wants(outputs_, at.own);
      auto const fused = wanted.fused;
      if (outputs_ % (fused * wanted.granules) != 0) {
        throw config_error(text("trireme::nn::linear ", at.name, ": ", how_many(outputs_, "output"),
                                agreeing(outputs_, " is", " are"), " not ", fused, " times ",
                                how_many(wanted.granules, "head"), " of one width, which the layer behind it takes"));
      }
      weight_.info.fused = bias_.info.fused = wanted.tensors;
      if (at.own.size > 1) {
        weight_.info.fused = bias_.info.fused = {};  // a part is of a part of each
        auto const part = at.part(wanted, outputs_);
        if (fused > 1) {
          weight_.info.extents = {inputs_, fused, outputs_ / fused};
          bias_.info.extents = {fused, outputs_ / fused};
        }
        weight_.info = shard_of(weight_.info, weight_.info.extents.rank() - 1, part);
        bias_.info = shard_of(bias_.info, bias_.info.extents.rank() - 1, part);
        outputs_ = fused * part.count;
      }
      at.cut = wanted;
    }
    at.counted.product(at.width, what_.outputs, at.forms_dx);
    if (at.lora != nullptr && changes_layer(*at.lora, at.name)) {
      change_.emplace(*at.lora, at.name, weight_.info);
      this->facts_.does_slope = false;  // dx has two terms
      if (step.as == role::column_parallel || step.as == role::row_parallel)
        change_->visit_whole([&](parameter<Env>& each) { at.terms.push_back(&each); });
    }
    at.width = what_.outputs;
  }
  // What the product reads: x itself, or the operand that the precision writes.
  using product = product_operand::product;
  static constexpr auto for_input = product::input_gradient;
  [[nodiscard]] view operand(pass<Env>& pass, product_operand::role which, view x, product of = product::forward) {
    return pass.operand(weight_.info.name, which, x, of);
  }
  auto& packed(pass<Env>& pass, product of = product::forward) {
    return packed_weights(packed_, pass, weight_.info.name, weight_.value.reshaped({inputs_, outputs_}), of);
  }

  std::int64_t inputs_ = 0, outputs_ = 0;  // of the part that lies here
  ops::activation act_ = ops::activation::none;
  bool adds_bias_ = true;
  parameter<Env> weight_{}, bias_{};
  std::optional<low_rank_change<Env>> change_;
  ops::weights<value, space> packed_;
  per_micro_batch<view> before_;
};

template <class Env>
class layer_node<Env, layer_norm> final : public library_node<Env, layer_norm> {
  using library_node<Env, layer_norm>::what_;
  using accumulate = typename Env::accumulate;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  using library_node<Env, layer_norm>::library_node;
  void visit(parameter_visitor<Env> const& each) override {
    each(gain_);
    each(bias_);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view) override {
    auto const rows = x.v.extent(0);
    auto& kept = kept_[pass];
    kept = {pass.activations.template take<accumulate>({rows}), pass.activations.template take<accumulate>({rows})};
    auto const y = to.template take<typename Env::compute>(x.v.extents());
    kernels::layer_norm(y, kept.mean, kept.rstd, x.v, gain_.value, bias_.value, what_.epsilon);
    return {y, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half) override {
    auto const& kept = kept_[pass];
    kernels::layer_norm_backward(to.into, gain_.gradient, bias_.gradient, dy, x.here, kept.mean, kept.rstd, gain_.value,
                                 to.accumulate);
  }

 private:
  struct saved {
    tensor_view<accumulate, space> mean, rstd;  // (rows)
  };
  void do_place(placing<Env>& at, layer_step const&) override {
    expect_number("nn::layer_norm " + at.name, ".epsilon", what_.epsilon, positive);
    gain_.info = {at.name + ".weight", {at.width}, {initial::distribution::ones, 0}, false};
    bias_.info = {at.name + ".bias", {at.width}, {}, false};
  }
  parameter<Env> gain_{}, bias_{};
  per_micro_batch<saved> kept_;
};

template <class Env>
class layer_node<Env, rms_norm> final : public library_node<Env, rms_norm> {
  using library_node<Env, rms_norm>::what_;
  using accumulate = typename Env::accumulate;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  using library_node<Env, rms_norm>::library_node;
  void visit(parameter_visitor<Env> const& each) override { each(gain_); }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view) override {
    auto& rstd = rstd_[pass];
    rstd = pass.activations.template take<accumulate>({x.v.extent(0)});
    auto const y = to.template take<typename Env::compute>(x.v.extents());
    kernels::rms_norm(y, rstd, x.v, gain_.value, what_.epsilon);
    return {y, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half) override {
    kernels::rms_norm_backward(to.into, gain_.gradient, dy, x.here, rstd_[pass], gain_.value, to.accumulate);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    expect_number("nn::rms_norm " + at.name, ".epsilon", what_.epsilon, positive);
    gain_.info = {at.name + ".weight", {at.width}, {initial::distribution::ones, 0}, false};
  }
  parameter<Env> gain_{};
  per_micro_batch<tensor_view<accumulate, space>> rstd_;
};

template <class Env>
class layer_node<Env, activation> final : public library_node<Env, activation> {
  using library_node<Env, activation>::what_;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;

  explicit layer_node(activation const& what)
      : library_node<Env, activation>(what, {.in_place = true, .activation = what.kind}) {}
  [[nodiscard]] layer_traits traits() const override {
    return {.does = flow::any, .activation = what_.kind != ops::activation::none};
  }
  [[nodiscard]] bool idle(pass<Env> const&) const override { return what_.kind == ops::activation::none; }
  held<Env> forward(pass<Env>&, held<Env> x, arena_of<Env>& to, view) override {
    auto const y = to.template take<typename Env::compute>(x.v.extents());
    kernels::activate(y, x.v, what_.kind);
    return {y, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half) override {
    kernels::activate_backward(to.into, dy, x.get(pass), what_.kind);
  }

 private:
  void do_place(placing<Env>&, layer_step const&) override {}
};

template <class Env>
class layer_node<Env, dropout> final : public library_node<Env, dropout> {
  using library_node<Env, dropout>::what_;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;

  explicit layer_node(dropout const& what) : library_node<Env, dropout>(what, {.in_place = true}) {}
  [[nodiscard]] bool idle(pass<Env> const& pass) const override { return !site(pass).active(); }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view) override {
    if (!x.ours) {
      auto const y = to.template take<typename Env::compute>(x.v.extents());
      kernels::copy(y, x.v);
      x = {y, true};
    }
    drop(pass, x.v);
    return x;
  }
  void backward_input(pass<Env>& pass, layer_input<Env>, view, view, target<Env> to, half) override {
    drop(pass, to.into);
  }

 private:
  void do_place(placing<Env>& at, layer_step const& step) override {
    if (!below_one.holds(what_.probability)) {
      throw config_error(
          text("trireme::nn::dropout ", at.name, ": probability ", what_.probability, " is not in [0, 1)"));
    }
    site_ = at.take_site();
    lies_ = step.takes;
    width_ = at.width;
    fused_ = lies_ == activation_layout::columns ? at.cut.fused : 1;
    part_ = lies_ == activation_layout::columns ? at.part(at.cut, at.width) : interval{0, at.width};
  }
  [[nodiscard]] ops::dropout_site_in<typename Env::space> site(pass<Env> const& pass) const {
    return dropout_site_of(pass, what_.probability, site_);
  }
  void drop(pass<Env>& pass, view y) const {
    bool const cut = part_.count * fused_ != width_;
    if (cut || (lies_ != activation_layout::rows && pass.group.cuts_rows()))
      return drop_columns(pass, y, width_, fused_, part_, site(pass));
    drop_rows(pass, y, rows_of(pass), site(pass));
  }
  std::uint32_t site_ = 0;
  activation_layout lies_ = activation_layout::rows;
  std::int64_t width_ = 0, fused_ = 1;
  interval part_{};
};

template <class Env>
class layer_node<Env, attend> final : public library_node<Env, attend> {
  using library_node<Env, attend>::what_;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit layer_node(attend const& what) : library_node<Env, attend>(what, {.reads_y = true, .overwrites = true}) {
    if (what_.key_heads == 0) what_.key_heads = what_.heads;
    if (what_.heads < 1 || what_.key_heads < 1 || what_.heads % what_.key_heads != 0 ||
        !not_negative.holds(what_.rotary)) {
      throw config_error(text("trireme::nn::attend: ", how_many(what_.heads, "head"), ", ",
                              how_many(what_.key_heads, "key head"), ", rotary ", what_.rotary,
                              "; heads are a multiple of key_heads, and rotary is not negative"));
    }
    expect_number("nn::attend", ".dropout", what_.dropout, below_one);
    auto const& scaling = what_.scaling;
    if (what_.window < 0 || !not_negative.holds(what_.norm) || !positive.holds(scaling.factor) ||
        scaling.original < 0 || !(scaling.low < scaling.high)) {
      throw config_error(text("trireme::nn::attend: window ", what_.window, ", norm ", what_.norm, ", scaling factor ",
                              scaling.factor, " of ", how_many(scaling.original, "position"), " between ", scaling.low,
                              " and ", scaling.high,
                              " turns; window, norm and positions are not negative, the factor is above "
                              "0, and low is below high"));
    }
  }
  void visit(parameter_visitor<Env> const& each) override {
    if (!normalises()) return;
    each(query_gain_);
    each(key_gain_);
  }
  [[nodiscard]] columns wants(std::int64_t width, group_rank own) const override {
    // Queries, keys and values are tensors of their own, as in files of models; grouped ones lie key by key.
    auto const each = width / (what_.heads + 2 * what_.key_heads) * (grouped() ? 1 : what_.heads);
    auto const queries = each * (grouped() ? what_.heads / what_.key_heads : 1);
    if (own.size <= what_.key_heads) return {what_.key_heads, grouped() ? 1 : 3, {queries, each, each}};
    throw config_error(text(
        "trireme::nn::attend: ", what_.key_heads, grouped() ? " key heads" : " heads", " cannot be cut into ", own.size,
        " ways; a tensor group has at most as many ranks as a layer has ", grouped() ? "key heads" : "heads"));
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view) override {
    auto const shape = shape_of(pass);
    auto const y = to.template take<typename Env::compute>({x.v.extent(0), channels_});
    auto& kept = kept_[pass];
    kept.qkv = arranged(pass, x);
    if (pass.paged != nullptr && what_.tokens.any()) {
      throw config_error(
          "trireme::nn::attend: a mask by tokens (padding, separator) needs whole samples; predict() them");
    }
    attend_all(
        pass, y, kept, shape, site(pass), [&] { return seen(pass); }, pages_, keys_.count);
    return {y, false};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view y, view dy, target<Env> to, half) override {
    auto const& kept = kept_[pass];
    auto const mark = pass.scratch.mark();
    // Not kept.qkv's extents: a context group may have kept other rows, of other heads.
    shape const all{dy.extent(0), 3 * channels_};
    auto const dqkv = grouped() ? pass.scratch.template take<typename Env::compute>(all) : to.into;
    attend_all_backward(pass, dqkv, dy, y, kept, shape_of(pass), site(pass), [&] { return seen(pass); });
    if (arranges()) kernels::arrange_heads_backward(to.into, dqkv, angles(pass), layout(pass));
    if (normalises()) {
      kernels::normalise_heads_backward(to.into, query_gain_.gradient, key_gain_.gradient, to.into, x.here, rstd_[pass],
                                        query_gain_.value, key_gain_.value, layout(pass));
    }
    pass.scratch.rewind(mark);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    auto const all = what_.heads + 2 * what_.key_heads;
    auto const each = at.width / all;
    if (each < 1 || at.width % all != 0 || (what_.rotary > 0 && each % 2 != 0)) {
      throw config_error(text("trireme::nn::attend ", at.name, ": ", how_many(at.width, "number"), " a row are not ",
                              what_.heads, " queries, ", how_many(what_.key_heads, "key"),
                              " and as many values of one ", what_.rotary > 0 ? "even " : "", "width"));
    }
    if (what_.tokens.any() && context_group<Env>::of(at.groups).size() > 1) {
      throw config_error(text("trireme::nn::attend ", at.name,
                              ": a mask by tokens (padding, separator) needs whole samples, and parallel::context cuts "
                              "them; leave one of them out"));
    }
    initial const ones{initial::distribution::ones, 0};
    query_gain_.info = {at.name + ".q_norm.weight", {each}, ones, false};
    key_gain_.info = {at.name + ".k_norm.weight", {each}, ones, false};
    site_ = at.take_site();
    at.width = each * what_.heads;
    auto const all_positions = at.positions, window = what_.window;
    bool const cut_off = window > 0 && window < all_positions;
    at.counted.attention(at.width, (cut_off ? window * (2 * all_positions - window) / all_positions : all_positions) *
                                       (what_.causal ? 1 : 2));
    at.cut = {what_.key_heads, 1};
    keys_ = at.own.of(what_.key_heads);
    auto const queries = what_.heads / what_.key_heads;
    heads_ = {keys_.first * queries, keys_.count * queries};
    channels_ = each * heads_.count;
  }
  [[nodiscard]] bool grouped() const noexcept { return what_.key_heads != what_.heads; }
  [[nodiscard]] bool normalises() const noexcept { return what_.norm > 0; }
  [[nodiscard]] bool arranges() const noexcept { return grouped() || what_.rotary > 0 || normalises(); }
  [[nodiscard]] ops::head_layout layout(pass<Env> const& pass) const {
    return {positions_of(pass), heads_.count, keys_.count, channels_ / heads_.count};
  }
  // What attention's kernels read: x, or x with norms, repeated keys and rotated by positions, in the memory of x if
  // possible.
  view arranged(pass<Env>& pass, held<Env> const& x) {
    if (!arranges()) return x.v;
    bool const apart = grouped() || normalises() || !x.ours;
    auto const out = apart ? pass.take({x.v.extent(0), 3 * channels_}) : x.v;
    auto from = x.v;
    if (normalises()) {
      rstd_[pass] =
          pass.activations.template take<typename Env::accumulate>({x.v.extent(0), heads_.count + keys_.count});
    }
    auto const mark = pass.scratch.mark();
    if (normalises()) {
      from = grouped() ? pass.scratch.template take<typename Env::compute>(x.v.extents()) : out;
      kernels::normalise_heads(from, rstd_[pass], x.v, query_gain_.value, key_gain_.value, layout(pass), what_.norm);
    }
    kernels::arrange_heads(out, from, angles(pass), layout(pass));
    pass.scratch.rewind(mark);
    return out;
  }
  // What the tokens let each position see, in scratch memory; empty where they say nothing.
  tensor_view<std::int32_t, space> seen(pass<Env>& pass) {
    if (!what_.tokens.any()) return {};
    auto const tokens = pass.batch.inputs.template as<std::int32_t>("inputs");
    auto const limits = pass.scratch.template take<std::int32_t>({tokens.extent(0), tokens.extent(1), 2});
    kernels::visible_keys(limits, tokens, what_.tokens);
    return limits;
  }
  // The rotations of those positions of a sample that lie here, in scratch memory; empty without `rotary`.
  tensor_view<typename Env::accumulate, space> angles(pass<Env>& pass) {
    if (!(what_.rotary > 0)) return {};
    return rotations_here(pass, channels_ / heads_.count, what_.rotary, what_.scaling);
  }
  [[nodiscard]] ops::attention_shape shape_of(pass<Env> const& pass) const {
    return {pass.batch.count(), positions_of(pass), heads_.count,
            channels_,          heads_.first,       {what_.causal, what_.window}};
  }
  [[nodiscard]] ops::dropout_site_in<typename Env::space> site(pass<Env> const& pass) const {
    return dropout_site_of(pass, what_.dropout, site_);
  }
  std::uint32_t site_ = 0;
  interval heads_{}, keys_{};
  std::int64_t channels_ = 0;
  parameter<Env> query_gain_{}, key_gain_{};
  per_micro_batch<attention_state<Env>> kept_;
  attention_pages<Env> pages_;
  per_micro_batch<tensor_view<typename Env::accumulate, space>> rstd_;  // (rows, heads + key heads)
};

}  // namespace detail

}  // namespace trireme::nn
