#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/nn/attention.hpp"
#include "trireme/nn/detail/own_rows.hpp"
#include "trireme/nn/layer_norm.hpp"
#include "trireme/nn/linear.hpp"
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

/// One transformer block of GPT-2: x + attention(norm(x)), then x + mlp(norm(x)). The second half of its backward pass
/// is the four products that make the matrices' gradients; all else is in the first.
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

  template <class Env>
  class instance {
    using space = typename Env::space;
    using value = typename Env::compute;
    using kernels = ops::on<space>;

   public:
    using view = tensor_view<value, space>;
    struct saved {
      typename layer_norm::instance<Env>::saved norm1;
      typename attention::instance<Env>::saved attended;
      typename layer_norm::instance<Env>::saved norm2;
      typename linear::instance<Env>::saved up;
      typename linear::instance<Env>::saved down;
    };

    explicit instance(gpt_block const& description, share own = {})
        : shape_(description.shape),
          site_(detail::first_site_of(description.index) + 2),
          norm1_({shape_.channels}, detail::name_in_block(description.index, "ln_1"), own),
          attention_(detail::attention_of(shape_, description.index), detail::name_in_block(description.index, "attn"),
                     own),
          norm2_({shape_.channels}, detail::name_in_block(description.index, "ln_2"), own),
          hidden_(own.of(4 * shape_.channels)),
          up_({.inputs = shape_.channels, .outputs = 4 * shape_.channels, .act = ops::activation::gelu},
              detail::name_in_block(description.index, "mlp.c_fc"), part(own, linear_part::axis::outputs)),
          down_({.inputs = 4 * shape_.channels,
                 .outputs = shape_.channels,
                 .start = {initial::distribution::normal, detail::residual_scale(shape_)}},
                detail::name_in_block(description.index, "mlp.c_proj"), part(own, linear_part::axis::inputs)) {}

    void visit(auto&& each) {
      norm1_.visit(each);
      attention_.visit(each);
      norm2_.visit(each);
      up_.visit(each);
      down_.visit(each);
    }

    view forward(pass<Env>& pass, saved& kept, view x) {
      auto const rows = pass.batch.inputs.extents.size();
      auto const attended = attention_.forward(pass, kept.attended, norm1_.forward(pass, kept.norm1, x), x, rows,
                                               pass.batch.inputs.extents[1]);
      auto const normed = norm2_.forward(pass, kept.norm2, attended);
      auto const hidden = up_.forward(pass, kept.up, pass.group.gather(normed, rows, pass.scratch));
      kept.up.x = normed;
      return down_.end_branch(pass, kept.down, hidden, attended, site(pass));
    }

    view backward(pass<Env>& pass, saved& kept, view dy) { return backward(pass, kept, dy, weight_half::at_once); }
    view backward_input(pass<Env>& pass, saved& kept, view dy) { return backward(pass, kept, dy, weight_half::later); }
    void backward_weight(pass<Env>& pass, saved& kept) {
      auto const rows = pass.batch.inputs.extents.size();
      down_.weight_gradient(pass, kept.down.x, pass.group.gather(kept.down.dy, rows, pass.scratch));
      up_.weight_gradient(pass, pass.group.gather(kept.up.x, rows, pass.scratch), kept.up.dy);
      attention_.weight_gradient(pass, kept.attended);
    }

   private:
    // dy becomes dx in place: the residual stream's gradient passes through unchanged, the branches add to it.
    view backward(pass<Env>& pass, saved& kept, view dy, weight_half when) {
      auto const rows = pass.batch.inputs.extents.size();
      auto const here = pass.scratch.mark();
      auto const take = [&](trireme::shape extents) { return pass.scratch.template take<value>(extents); };
      auto const dbranch = take({rows, shape_.channels});  // all rows of a branch's input
      auto const inner = pass.scratch.mark();
      auto const ddown = down_.branch_gradient(pass, kept.down, dy, site(pass), when);
      auto const before = kept.up.before_activation;  // which nobody needs any more once its gradient is there
      bool const at_once = when == weight_half::at_once;
      auto const dup = kept.up.dy = at_once ? take({rows, hidden_.count}) : before;
      if (at_once) down_.weight_gradient(pass, kept.down.x, ddown);
      down_.input_gradient(pass, dup, ddown, {ops::activation::gelu, before, false});
      if (at_once) up_.weight_gradient(pass, pass.group.gather(kept.up.x, rows, pass.scratch), dup);
      auto const dnormed = pass.group.reduce(up_.input_gradient_term(pass, dbranch, dup));
      pass.scratch.rewind(inner);
      norm2_.backward(pass, kept.norm2, dy, dnormed, true);
      auto const dattention = attention_.backward(pass, kept.attended, dbranch, dy, pass.batch.inputs.extents[1], when);
      norm1_.backward(pass, kept.norm1, dy, dattention, true);
      pass.scratch.rewind(here);
      return dy;
    }
    [[nodiscard]] linear_part part(share own, linear_part::axis axis) const {
      return own.size == 1 ? linear_part{} : linear_part{axis, hidden_, own.rank};
    }
    [[nodiscard]] ops::dropout_site site(pass<Env> const& pass) const {
      return {pass.training() ? shape_.dropout : 0, pass.key, site_, pass.batch.ids};
    }

    gpt_shape shape_;
    std::uint32_t site_;  // of the second branch's dropout
    layer_norm::instance<Env> norm1_;
    attention::instance<Env> attention_;
    layer_norm::instance<Env> norm2_;
    interval hidden_;  // numbers between the two products, those that lie here
    linear::instance<Env> up_;
    linear::instance<Env> down_;
  };
};

}  // namespace trireme::nn
