#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/contract/context_group.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/nn/expression.hpp"
#include "trireme/ops/sets/dense.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// The first layer of a model of tokens: y[b,t] = table[token[b,t]], and + positions[t] if `positions` is not 0, and
/// + segments[s] if `segments` is not 0: s is the number of `separator` tokens before t, at most segments - 1.
///
/// Shapes   tokens (B, T) int32 from the batch, y (B*T, outputs); the table (words, outputs), the positions' table
///          (positions, outputs), the segments' (segments, outputs). unembedding{.tied = name} multiplies by the table
///          of that name.
/// Ranks    each rank of a tensor group has some rows of the words' table, and the whole of the other tables. A rank
///          adds 0 for a word that another rank has; a sum over the group follows.
/// Errors   config_error for no words or outputs, for more ranks than words, for samples of more positions than
///          `positions`, unless 0, and for segments where a context group cuts samples.
struct embedding {
  TRIREME_NEEDS_KERNELS("nn::embedding", dense);
  static constexpr layer_traits traits{.does = flow::source, .terms = true};
  std::int64_t words = 0;
  std::int64_t outputs = 0;
  std::int64_t positions = 0;    ///< that samples may have; 0: no table of positions
  std::string table = "weight";  ///< the last part of the table's name
  std::string position_table = "positions";
  initial start{initial::distribution::normal, 0.02};
  std::int64_t segments = 0;  ///< 0: no table of segments
  std::int32_t separator = 0;
  std::string segment_table = "segments";
  friend bool operator==(embedding const&, embedding const&) = default;
};

/// The first layer of a model of numbers: those of each sample are a row.
///
/// Shapes   inputs (B, ...) float from the batch, y (B, outputs).
/// Errors   config_error for samples of another size.
struct features {
  TRIREME_NEEDS_KERNELS("nn::features", dense);
  static constexpr layer_traits traits{.does = flow::source};
  static constexpr bool reads_numbers = true;  // which have gradients
  std::int64_t outputs = 0;
  friend bool operator==(features const&, features const&) = default;
};

namespace detail {

/// A vocabulary's table, of which each rank of a tensor group has some rows.
template <class Env>
[[nodiscard]] parameter<Env> word_table(std::string_view layer, placing<Env> const& at, std::string name,
                                        shape const& extents, initial const& start) {
  if (extents[0] < 1 || extents[1] < 1) {
    throw config_error(text("trireme::nn::", layer, ": ", name, " has shape ", to_string(extents),
                            " (words, channels); both must be at least 1"));
  }
  if (at.own.size > extents[0]) {
    throw config_error(text("trireme::nn::", layer, ": the ", how_many(extents[0], "word"), " of ", name,
                            " cannot be cut into ", at.own.size,
                            " ways; a tensor group has at most as many ranks as there are words"));
  }
  parameter_info info{std::move(name), extents, start, true};
  if (at.own.size > 1) info = shard_of(info, 0, at.own.of(extents[0]));
  return {info, {}, {}};
}

template <class Env>
class layer_node<Env, embedding> final : public library_node<Env, embedding> {
  using library_node<Env, embedding>::what_;
  using kernels = ops::on<typename Env::space>;

 public:
  using typename node<Env>::view;

  explicit layer_node(embedding const& what) : library_node<Env, embedding>(what, {.weights = true}) {}
  void visit(parameter_visitor<Env> const& each) override {
    each(table_);
    if (what_.positions > 0) each(positions_);
    if (what_.segments > 0) each(segments_);
  }
  held<Env> forward(pass<Env>& pass, held<Env>, arena_of<Env>& to, view) override {
    auto const tokens = pass.batch.inputs.template as<std::int32_t>("inputs");  // (B,T)
    if (tokens.rank() != 2 || (what_.positions > 0 && end_of(pass, tokens.extent(1)) > what_.positions)) {
      throw config_error(text(
          "trireme::nn::embedding: tokens of shape ", to_string(tokens.extents()),
          what_.positions > 0 ? text(" do not fit the ", how_many(what_.positions, "position"), " of ", this->name(),
                                     pass.paged == nullptr ? "" : text(": the last one is at ", pass.paged->end() - 1))
                              : text(" are not samples of positions: give (samples, positions)")));
    }
    if (pass.paged != nullptr && what_.segments > 0) {
      throw config_error(
          text("trireme::nn::embedding: segments of ", this->name(), " are counted in whole samples; predict() them"));
    }
    auto const y = to.template take<typename Env::compute>({tokens.size(), what_.outputs});
    bool const adds_positions = what_.positions > 0 && pass.group.rank() == 0;
    for_each_stretch(pass, tokens, [&](auto const& words, std::int64_t row, interval at) {
      kernels::embed(y.rows(row, words.size()), words, table_.value,
                     adds_positions ? positions_.value.rows(at.first, at.count) : decltype(positions_.value){}, part_);
    });
    if (what_.segments > 0 && pass.group.rank() == 0)
      kernels::embed_segments(y, tokens, what_.separator, segments_.value);
    return {y, true};
  }
  void backward_weight(pass<Env>& pass, layer_input<Env>, view dy) override {
    auto const tokens = pass.batch.inputs.template as<std::int32_t>("inputs");
    for_each_stretch(pass, tokens, [&](auto const& words, std::int64_t row, interval at) {
      kernels::embed_backward(
          table_.gradient,
          what_.positions > 0 ? positions_.gradient.rows(at.first, at.count) : decltype(positions_.gradient){},
          dy.rows(row, words.size()), words, part_);
    });
    if (what_.segments > 0) kernels::embed_segments_backward(segments_.gradient, dy, tokens, what_.separator);
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override {
    table_ = word_table("embedding", at, text(at.name, ".", what_.table), {what_.words, what_.outputs}, what_.start);
    part_ = {at.own.of(what_.words).first, what_.words};
    positions_.info = {text(at.name, ".", what_.position_table), {what_.positions, what_.outputs}, what_.start, true};
    if (what_.segments > 0 && context_group<Env>::of(at.groups).size() > 1) {
      throw config_error(text("trireme::nn::embedding ", at.name,
                              ": segments are counted in whole samples, and parallel::context cuts them; leave one of "
                              "them out"));
    }
    segments_.info = {text(at.name, ".", what_.segment_table), {what_.segments, what_.outputs}, what_.start, true};
    at.width = what_.outputs;
  }
  // The position behind the last one, of whole samples.
  static std::int64_t end_of(pass<Env> const& pass, std::int64_t context) {
    return pass.paged != nullptr ? pass.paged->end() : context_group<Env>::of(pass).part().whole(context);
  }
  // Calls f(tokens, first row, positions) for tokens of several samples that have the same positions, or of one.
  template <class Tokens, class F>
  static void for_each_stretch(pass<Env> const& pass, Tokens const& tokens, F const& f) {
    auto const context = tokens.extent(1);
    if (pass.paged != nullptr) {
      return pass.paged->for_each_run([&](std::int64_t row, std::int64_t count, std::int64_t position) {
        f(tokens.flat(row, count).reshaped({1, count}), row, interval{position, count});
      });
    }
    auto const& part = context_group<Env>::of(pass).part();
    if (part.own.size == 1) return f(tokens, 0, interval{0, context});
    for (std::int64_t b = 0; b < tokens.extent(0); ++b) {
      for (int which = 0; which < part.stretches(); ++which) {
        auto const at = part.at(which, context);
        auto const row = b * context + at.row;
        f(tokens.flat(row, at.count).reshaped({1, at.count}), row, interval{at.position, at.count});
      }
    }
  }
  ops::table_range part_;
  parameter<Env> table_{}, positions_{}, segments_{};
};

template <class Env>
class layer_node<Env, features> final : public library_node<Env, features> {
  using library_node<Env, features>::what_;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  using library_node<Env, features>::library_node;
  held<Env> forward(pass<Env>& pass, held<Env>, arena_of<Env>& to, view) override {
    auto const& inputs = pass.batch.inputs;
    auto const count = pass.batch.count();
    if (inputs.size() != count * what_.outputs) {
      throw config_error(text("trireme::nn::features: inputs of shape ", to_string(inputs.extents), " for ",
                              this->name(), ", which takes ", how_many(what_.outputs, "number"), " a sample"));
    }
    auto const y = to.template take<typename Env::compute>({count, what_.outputs});
    with_numbers<Env>(inputs, "inputs", [&](auto numbers) { ops::on<space>::copy(y.flat(), numbers.flat()); });
    return {y, true};
  }
  view input_gradient(pass<Env>& pass, view dy) override {
    auto const dx = pass.take(dy.extents());
    ops::on<space>::copy(dx, dy);
    return dx;
  }

 private:
  void do_place(placing<Env>& at, layer_step const&) override { at.width = what_.outputs; }
};

}  // namespace detail

}  // namespace trireme::nn
