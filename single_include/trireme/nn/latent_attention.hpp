// Trireme 0.1.0: trireme/nn/latent_attention.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 842bb7831a269c4270962ccb379c7ada5241614503e0ae7d6d28f86c8c88e8fb
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/ops/latent_heads.hpp"
#include "trireme/ops/sets/latent.hpp"

// ---- trireme/nn/latent_attention.hpp
#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::nn {

/// DeepSeek's multi-head latent attention. Keys and values are products of a normalised latent row of `rank` numbers;
/// queries are products of one of `query_rank` numbers, or of the input itself. Rotary positions turn only
/// `rotary_width` numbers of a query and of a key; those of the key are a product of the input, and all heads share
/// them. The product behind, `o_proj`, is a layer of its own.
///
/// Shapes   x (rows, channels), y (rows, heads * values). Parameters have Hugging Face's names: `q_proj`, or `q_a_proj`
///          with `q_a_layernorm` and `q_b_proj`; `kv_a_proj_with_mqa`, `kv_a_layernorm`, `kv_b_proj`.
/// Ranks    a tensor group shares the heads; every rank computes the narrow products for the rows that lie there, as
///          DeepSeek does. Context groups take positions as with nn::attend.
/// Bytes    keeps x, what each product gives, and 3 * heads * D numbers a row, D being the larger of a query's and a
///          value's width: attention's kernels take one width, and values are filled up with zeros. Context groups
///          send the keys and values of all heads, so filled up.
/// Numerics scores are divided by the root of a query's width. Numbers 2 i and 2 i + 1 of what is turned are a pair.
/// Method   [DeepSeek-AI, "DeepSeek-V2", 2024], 2.1.
/// Errors   config_error for widths that are not positive, an odd rotary_width, or a tensor group of more ranks than
///          heads; a sentence of the compiler where no linear layer is behind it.
struct latent_attention {
  TRIREME_NEEDS_KERNELS("nn::latent_attention", latent);
  static constexpr layer_traits traits{.does = flow::fork, .spreads = true};
  std::int64_t heads = 1;
  std::int64_t query_rank = 0;    ///< 0: queries are one product of the input
  std::int64_t rank = 0;          ///< of keys and values
  std::int64_t plain = 0;         ///< numbers of a query and a key that are not turned
  std::int64_t rotary_width = 0;  ///< and those that are
  std::int64_t values = 0;        ///< numbers of a value
  double rotary = 10000;          ///< base of the angles
  ops::rotary_scaling scaling{};  ///< of the angles
  double epsilon = 1e-6;          ///< of the norms
  double dropout = 0;             ///< of the attention weights
  friend bool operator==(latent_attention const&, latent_attention const&) = default;
};

namespace detail {

template <>
struct inside<latent_attention> {
  template <role As, activation_layout>
  static constexpr bool fits() {
    static_assert(As == role::column_parallel,
                  "trireme::nn::latent_attention: its heads are columns, which a tensor group shares; put a linear "
                  "layer right behind it");
    return As == role::column_parallel;
  }
};

template <class Env>
class layer_node<Env, latent_attention> final : public library_node<Env, latent_attention> {
  using library_node<Env, latent_attention>::what_;
  using kernels = ops::on<typename Env::space>;
  using heads_kernels = ops::latent_heads_on<typename Env::space>;
  using value = typename Env::compute;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  explicit layer_node(latent_attention const& what)
      : library_node<Env, latent_attention>(checked(what), {.inside = true}),
        queries_(query_layers(what)),
        down_(down_layers(what)),
        pairs_(pair_layers(what)) {}
  [[nodiscard]] columns wants(std::int64_t, group_rank) const override { return {what_.heads, 1}; }  // of its products
  void visit(parameter_visitor<Env> const& each) override {
    for (auto* one : {&queries_, &down_, &pairs_}) one->visit(each);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view) override {
    auto& kept = kept_[pass];
    kept.queries = queries_.forward(pass, x.v).v;
    kept.down = down_.forward(pass, x.v).v;
    kept.latent = pass.take({kept.down.extent(0), what_.rank});
    kernels::copy_columns(kept.latent, 0, kept.down, 0, what_.rank);
    kept.pairs = pairs_.forward(pass, kept.latent).v;
    auto const rows = kept.queries.extent(0);
    auto const how = layout(pass);
    auto const y = to.template take<value>({rows, how.heads * how.values});
    auto& state = kept.state;
    state.qkv = pass.take({rows, 3 * how.heads * how.width()});
    auto const mark = pass.scratch.mark();
    auto const key = pass.scratch.template take<value>({kept.down.extent(0), what_.rotary_width});
    kernels::copy_columns(key, 0, kept.down, what_.rank, what_.rotary_width);
    heads_kernels::arrange(state.qkv, kept.queries, kept.pairs, pass.group.gather(key, rows, pass.scratch),
                           angles(pass), how);
    auto const wide =
        how.width() == how.values ? y : pass.scratch.template take<value>({rows, shape_of(pass).channels});
    attend_all(pass, wide, state, shape_of(pass), site(pass), unseen, pages_);
    if (how.width() != how.values) {
      kernels::copy_columns(y.reshaped({rows * how.heads, how.values}), 0,
                            wide.reshaped({rows * how.heads, how.width()}), 0, how.values);
    }
    pass.scratch.rewind(mark);
    return {y, false};
  }
  // The gradients of the products' results are written to the memory of those results, which is not read again.
  void backward_input(pass<Env>& pass, layer_input<Env> x, view y, view dy, target<Env> to, half when) override {
    auto& kept = kept_[pass];
    auto const how = layout(pass);
    auto const rows = dy.extent(0);
    auto const mark = pass.scratch.mark();
    auto const dkey = pass.scratch.template take<value>({rows, what_.rotary_width});
    auto const attended = pass.scratch.mark();
    auto const dqkv = pass.scratch.template take<value>({rows, 3 * how.heads * how.width()});
    attend_all_backward(pass, dqkv, filled_up(pass, dy), filled_up(pass, y), kept.state, shape_of(pass), site(pass),
                        unseen);
    heads_kernels::arrange_backward(kept.queries, kept.pairs, dkey, dqkv, angles(pass), how);
    pass.scratch.rewind(attended);
    auto const dlatent = pass.scratch.template take<value>(kept.latent.extents());
    pairs_.backward(pass, {kept.latent}, {kept.pairs, true, memory::kept}, {dlatent, false}, when);
    kernels::copy_columns(kept.down, 0, dlatent, 0, what_.rank);
    kernels::copy_columns(kept.down, what_.rank, pass.group.reduce(partial_sum<view>(dkey)), 0, what_.rotary_width);
    down_.backward(pass, x, {kept.down, true, memory::kept}, {to.into, to.accumulate}, when);
    queries_.backward(pass, x, {kept.queries, true, memory::kept}, {to.into, true}, when);
    pass.scratch.rewind(mark);
  }
  void backward_weight(pass<Env>& pass, layer_input<Env> x, view) override {
    pairs_.backward_weight(pass, {kept_[pass].latent});
    down_.backward_weight(pass, x);
    queries_.backward_weight(pass, x);
  }

 private:
  struct saved {
    view queries;                // (rows, heads * query), all rows, of the heads that lie here
    view down;                   // (rows, rank + rotary_width), of the rows that lie here
    view latent;                 // (rows, rank), its first columns
    view pairs;                  // (rows, heads * pair), as queries
    attention_state<Env> state;  // of heads that are filled up
  };
  using tokens = tensor_view<std::int32_t, space>;
  static tokens unseen() { return {}; }  // tokens hide nothing

  static latent_attention const& checked(latent_attention const& what) {
    bool const fits = what.heads > 0 && what.query_rank >= 0 && what.rank > 0 && what.plain > 0 && what.values > 0 &&
                      what.rotary_width > 0 && what.rotary_width % 2 == 0 && what.rotary > 0 && what.scaling.factor > 0;
    if (fits) return what;
    throw config_error(text("trireme::nn::latent_attention: ", how_many(what.heads, "head"), ", ranks ",
                            what.query_rank, " and ", what.rank, ", ", what.plain, " plain, ", what.rotary_width,
                            " rotary and ", what.values, " value numbers, rotary ", what.rotary,
                            "; all but query_rank are above 0, and ", "rotary_width is even"));
  }
  static linear product(std::int64_t outputs) { return {.outputs = outputs, .bias = false}; }
  static std::vector<node_pointer<Env>> query_layers(latent_attention const& what) {
    auto const all = product(what.heads * (what.plain + what.rotary_width));
    if (what.query_rank == 0) return nodes_of<Env>(named("q_proj", all));
    return nodes_of<Env>(chain(named("q_a_proj", product(what.query_rank)),
                               named("q_a_layernorm", rms_norm{what.epsilon}), named("q_b_proj", all)));
  }
  static std::vector<node_pointer<Env>> down_layers(latent_attention const& what) {
    return nodes_of<Env>(named("kv_a_proj_with_mqa", product(what.rank + what.rotary_width)));
  }
  static std::vector<node_pointer<Env>> pair_layers(latent_attention const& what) {
    return nodes_of<Env>(chain(named("kv_a_layernorm", rms_norm{what.epsilon}),
                               named("kv_b_proj", product(what.heads * (what.plain + what.values)))));
  }

  void do_place(placing<Env>& at, layer_step const& step) override {
    if (step.as != role::column_parallel) {
      throw config_error(text("trireme::nn::latent_attention ", at.name, ": put a linear layer right behind it"));
    }
    if (at.own.size > what_.heads) {
      throw config_error(text("trireme::nn::latent_attention ", at.name, ": ", what_.heads,
                              " heads cannot be cut into ", at.own.size,
                              " ways; a tensor group has at most as many ranks as a layer has heads"));
    }
    auto const from = at.width;
    at.taker = this;
    queries_.place(at, activation_layout::rows, activation_layout::columns);
    at.width = from;
    down_.place(at, activation_layout::rows, activation_layout::rows);
    at.width = what_.rank;
    at.taker = this;
    pairs_.place(at, activation_layout::rows, activation_layout::columns);
    at.width = what_.heads * what_.values;
    at.cut = {what_.heads, 1};
    at.image = {};
    at.counted.attention(what_.heads * std::max(what_.plain + what_.rotary_width, what_.values), at.positions);
    site_ = at.take_site();
    heads_ = at.own.of(what_.heads);
  }
  [[nodiscard]] ops::latent_layout layout(pass<Env> const& pass) const {
    return {positions_of(pass), heads_.count, what_.plain, what_.rotary_width, what_.values};
  }
  [[nodiscard]] ops::attention_shape shape_of(pass<Env> const& pass) const {
    auto const how = layout(pass);
    return {pass.batch.count(), how.context, how.heads, how.heads * how.width(), heads_.first, {}};
  }
  [[nodiscard]] ops::dropout_site_in<typename Env::space> site(pass<Env> const& pass) const {
    return dropout_site_of(pass, what_.dropout, site_);
  }
  auto angles(pass<Env>& pass) const { return rotations_here(pass, what_.rotary_width, what_.rotary, what_.scaling); }
  // Values of heads, with zeros behind each as far as attention's width; in scratch memory.
  view filled_up(pass<Env>& pass, view x) const {
    auto const how = layout(pass);
    if (how.width() == how.values) return x;
    auto const out = pass.scratch.template take<value>({x.extent(0) * how.heads, how.width()});
    kernels::fill(out, 0.0);
    kernels::copy_columns(out, 0, x.reshaped({x.extent(0) * how.heads, how.values}), 0, how.values);
    return out.reshaped({x.extent(0), how.heads * how.width()});
  }

  std::uint32_t site_ = 0;
  interval heads_{};
  chain_node<Env> queries_, down_, pairs_;
  per_micro_batch<saved> kept_;
  attention_pages<Env> pages_;
};

}  // namespace detail

}  // namespace trireme::nn
