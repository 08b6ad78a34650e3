#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/nn/attention.hpp"
#include "trireme/nn/detail/own_rows.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// The numbers that all units of a GPT share.
struct gpt_shape {
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t channels = 0;
  double dropout = 0;
  friend bool operator==(gpt_shape const&, gpt_shape const&) = default;
};

namespace detail {

/// The token table, used by the first and the last unit: one tied tensor, of which each rank of a group has some rows.
template <class Env>
[[nodiscard]] parameter<Env> token_table(gpt_shape const& shape, share own) {
  if (own.size > shape.vocabulary) {
    throw config_error(text("trireme::nn::gpt: a vocabulary of ", shape.vocabulary, " cannot be cut into ", own.size,
                            " ways; a tensor group has at most as many ranks as there are tokens"));
  }
  parameter_info info{
      "transformer.wte.weight", {shape.vocabulary, shape.channels}, {initial::distribution::normal, 0.02}, true};
  if (own.size > 1) info = part_of(info, 0, own.of(shape.vocabulary));
  return {info, {}, {}};
}
/// GPT-2 scales what is added to the residual stream down with depth.
[[nodiscard]] inline double residual_scale(gpt_shape const& shape) {
  return 0.02 / std::sqrt(2.0 * static_cast<double>(shape.layers));
}
/// The name of a part of a block, as GPT-2 has it.
[[nodiscard]] inline std::string name_in_block(std::int64_t block, char const* part) {
  return text("transformer.h.", block, ".", part);
}
/// Attention has this dropout site of a block and the next one; the third is at the end of the second branch.
[[nodiscard]] inline std::uint32_t first_site_of(std::int64_t block) noexcept {
  return static_cast<std::uint32_t>(1 + 3 * block);
}
[[nodiscard]] inline attention attention_of(gpt_shape const& shape, std::int64_t block) {
  return {.channels = shape.channels,
          .heads = shape.heads,
          .dropout = shape.dropout,
          .site = first_site_of(block),
          .projection_scale = residual_scale(shape)};
}
[[nodiscard]] inline ops::table_part tokens_here(gpt_shape const& shape, share own) {
  return {own.of(shape.vocabulary).first, shape.vocabulary};
}

}  // namespace detail

/// Tokens to vectors: y[b,t] = wte[token[b,t]] + wpe[t], then dropout. All gradients are made in the second half of its
/// backward pass.
///
/// Shapes   tokens (B, T) int32 from the batch, y (B*T, C): the rows of it that lie here.
/// Ranks    each of a tensor group has some tokens; a token that lies elsewhere counts as 0 in the sum over the group.
struct gpt_embedding {
  gpt_shape shape;
  friend bool operator==(gpt_embedding const&, gpt_embedding const&) = default;

  template <class Env>
  class instance {
    using space = typename Env::space;
    using kernels = ops::on<space>;

   public:
    using view = tensor_view<typename Env::compute, space>;
    struct saved {
      view dy;  // (B*T, C), the rows that lie here: between the halves of a backward pass
    };

    explicit instance(gpt_embedding const& description, share own = {})
        : shape_(description.shape),
          part_(detail::tokens_here(shape_, own)),
          tokens_(detail::token_table<Env>(shape_, own)),
          positions_{{"transformer.wpe.weight",
                      {shape_.context, shape_.channels},
                      {initial::distribution::normal, 0.02},
                      true},
                     {},
                     {}} {
      positions_.info.answers = own.rank == 0;
    }

    void visit(auto&& each) {
      each(tokens_);
      each(positions_);
    }
    view forward(pass<Env>& pass, saved&, view) {
      auto const tokens = pass.batch.inputs.template as<std::int32_t>();  // (B,T)
      if (tokens.rank() != 2 || context_group<Env>::of(pass).part().whole(tokens.extent(1)) > shape_.context) {
        throw config_error(text("trireme::nn::gpt: tokens of shape ", to_string(tokens.extents()),
                                " do not fit a context of ", shape_.context));
      }
      auto const y = detail::kept_sum(pass, [&](auto& from) {
        auto const all = from.template take<typename Env::compute>({tokens.size(), shape_.channels});  // (B*T,C)
        bool const adds_positions = pass.group.rank() == 0;
        for_each_stretch(pass, tokens, [&](auto const& words, std::int64_t row, interval positions) {
          kernels::embed(
              all.rows(row, words.size()), words, tokens_.value,
              adds_positions ? positions_.value.rows(positions.first, positions.count) : decltype(positions_.value){},
              part_);
        });
        return partial_sum<view>(all);
      });
      detail::drop_rows(pass, y, tokens.size(), site(pass));
      return y;
    }
    view backward(pass<Env>& pass, saved& kept, view dy) {
      backward_input(pass, kept, dy);
      backward_weight(pass, kept);
      return {};
    }
    view backward_input(pass<Env>& pass, saved& kept, view dy) {
      detail::drop_rows(pass, dy, pass.batch.inputs.extents.size(), site(pass));
      kept.dy = dy;
      return {};
    }
    void backward_weight(pass<Env>& pass, saved& kept) {
      auto const tokens = pass.batch.inputs.template as<std::int32_t>();
      auto const all = pass.group.gather(kept.dy, tokens.size(), pass.scratch);
      for_each_stretch(pass, tokens, [&](auto const& words, std::int64_t row, interval positions) {
        kernels::embed_backward(tokens_.gradient, positions_.gradient.rows(positions.first, positions.count),
                                all.rows(row, words.size()), words, part_);
      });
    }

   private:
    // Calls f(tokens, first row, positions) for tokens of several samples that have the same positions, or of one.
    template <class Tokens, class F>
    static void for_each_stretch(pass<Env> const& pass, Tokens const& tokens, F const& f) {
      auto const context = tokens.extent(1);
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
    [[nodiscard]] ops::dropout_site site(pass<Env> const& pass) const {
      return {pass.training() ? shape_.dropout : 0, pass.key, 0, pass.batch.ids};
    }
    gpt_shape shape_;
    ops::table_part part_;
    parameter<Env> tokens_;
    parameter<Env> positions_;
  };
};

/// One transformer block of GPT-2: x + attention(norm(x)), then x + mlp(norm(x)).
///
/// Shapes   x, y (B*T, C): the rows of them that lie here.
/// Ranks    each of a tensor group has some heads, and some of the numbers between the products of the mlp; a sum over
///          the group ends either branch, and begins it in the backward pass.
/// Bytes    saves 2 norms' results, queries/keys/values, the heads' output, and the two sides of the GELU. Between the
///          halves of a backward pass two gradients (rows, C) more; of cut rows those that lie here, and the second
///          half gathers the others once more.
struct gpt_block {
  gpt_shape shape;
  std::int64_t index = 0;
  friend bool operator==(gpt_block const&, gpt_block const&) = default;

  [[nodiscard]] std::string name() const { return text("transformer.h.", index); }
  [[nodiscard]] std::int64_t width() const noexcept { return shape.channels; }
  [[nodiscard]] std::uint32_t site() const noexcept { return detail::first_site_of(index); }
  template <class = void>  // a program without a GPT does not compile it
  [[nodiscard]] auto layers() const {
    auto const c = shape.channels;
    initial const deep{initial::distribution::normal, detail::residual_scale(shape)};
    return chain(
        residual(named("ln_1", layer_norm{}),
                 named("attn", chain(named("c_attn", linear{.outputs = 3 * c}), attend{shape.heads, shape.dropout},
                                     named("c_proj", linear{.outputs = c, .start = deep}))),
                 dropout{shape.dropout}),
        residual(named("ln_2", layer_norm{}),
                 named("mlp", chain(named("c_fc", linear{.outputs = 4 * c}), gelu(),
                                    named("c_proj", linear{.outputs = c, .start = deep}))),
                 dropout{shape.dropout}));
  }
  template <class Env>
  using instance = expression<Env>;
};

}  // namespace trireme::nn
