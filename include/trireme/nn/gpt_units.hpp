#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "trireme/contract/model.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/attention.hpp"
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

/// The token table, used by the first and the last unit: one tied tensor.
template <class Env>
[[nodiscard]] parameter<Env> token_table(gpt_shape const& shape) {
  return {{"transformer.wte.weight", {shape.vocabulary, shape.channels}, {initial::distribution::normal, 0.02}, true},
          {},
          {}};
}

}  // namespace detail

/// Tokens to vectors: y[b,t] = wte[token[b,t]] + wpe[t], then dropout.
///
/// Shapes   tokens (B, T) int32 from the batch, y (B*T, C).
struct gpt_embedding {
  gpt_shape shape;
  friend bool operator==(gpt_embedding const&, gpt_embedding const&) = default;

  template <class Env>
  class instance {
    using space = typename Env::space;
    using kernels = ops::on<space>;

   public:
    using view = tensor_view<typename Env::compute, space>;
    struct saved {};

    explicit instance(gpt_embedding const& description)
        : shape_(description.shape),
          tokens_(detail::token_table<Env>(shape_)),
          positions_{{"transformer.wpe.weight",
                      {shape_.context, shape_.channels},
                      {initial::distribution::normal, 0.02},
                      true},
                     {},
                     {}} {}

    void visit(auto&& each) {
      each(tokens_);
      each(positions_);
    }
    view forward(pass<Env>& pass, saved&, view) {
      auto const tokens = pass.batch.inputs.template as<std::int32_t>();  // (B,T)
      if (tokens.rank() != 2 || tokens.extent(1) > shape_.context) {
        throw config_error(text("trireme::nn::gpt: tokens of shape ", to_string(tokens.extents()),
                                " do not fit a context of ", shape_.context));
      }
      auto const y = pass.take({tokens.size(), shape_.channels});  // (B*T,C)
      kernels::embed(y, tokens, tokens_.value, positions_.value);
      kernels::dropout(y, site(pass));
      return y;
    }
    view backward(pass<Env>& pass, saved&, view dy) {
      kernels::dropout(dy, site(pass));
      kernels::embed_backward(tokens_.gradient, positions_.gradient, dy, pass.batch.inputs.template as<std::int32_t>());
      return {};
    }

   private:
    [[nodiscard]] ops::dropout_site site(pass<Env> const& pass) const {
      return {pass.training() ? shape_.dropout : 0, pass.key, 0, pass.batch.ids};
    }
    gpt_shape shape_;
    parameter<Env> tokens_;
    parameter<Env> positions_;
  };
};

/// One transformer block of GPT-2: x + attention(norm(x)), then x + mlp(norm(x)).
///
/// Shapes   x, y (B*T, C).
/// Bytes    saves 2 norms' results, queries/keys/values, the heads' output, and the two sides of the GELU.
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

    explicit instance(gpt_block const& description)
        : shape_(description.shape),
          site_(static_cast<std::uint32_t>(1 + 3 * description.index)),
          norm1_({shape_.channels}, name(description, "ln_1")),
          attention_({.channels = shape_.channels,
                      .heads = shape_.heads,
                      .dropout = shape_.dropout,
                      .site = site_,
                      .projection_scale = residual_scale()},
                     name(description, "attn")),
          norm2_({shape_.channels}, name(description, "ln_2")),
          up_({.inputs = shape_.channels, .outputs = 4 * shape_.channels, .act = ops::activation::gelu},
              name(description, "mlp.c_fc")),
          down_({.inputs = 4 * shape_.channels,
                 .outputs = shape_.channels,
                 .start = {initial::distribution::normal, residual_scale()}},
                name(description, "mlp.c_proj")) {}

    void visit(auto&& each) {
      norm1_.visit(each);
      attention_.visit(each);
      norm2_.visit(each);
      up_.visit(each);
      down_.visit(each);
    }

    view forward(pass<Env>& pass, saved& saved, view x) {
      auto const context = pass.batch.inputs.extents[1];
      auto const attended = attention_.forward(pass, saved.attended, norm1_.forward(pass, saved.norm1, x), x, context);
      auto const hidden = up_.forward(pass, saved.up, norm2_.forward(pass, saved.norm2, attended));
      auto const drop = site(pass);
      auto const y = down_.forward(pass, saved.down, hidden, drop.active() ? view{} : attended);
      if (drop.active()) {
        kernels::dropout(y, drop);
        kernels::add(y, attended);
      }
      return y;
    }

    // dy becomes dx in place: the residual stream's gradient passes through unchanged, the branches add to it.
    view backward(pass<Env>& pass, saved& saved, view dy) {
      auto const context = pass.batch.inputs.extents[1];
      auto const here = pass.scratch.mark();
      auto const take = [&](trireme::shape extents) { return pass.scratch.template take<value>(extents); };
      auto const dnorm = take(dy.extents());
      {
        auto const inner = pass.scratch.mark();
        auto ddown = dy;
        if (auto const drop = site(pass); drop.active()) {
          ddown = take(dy.extents());
          kernels::copy(ddown, dy);
          kernels::dropout(ddown, drop);
        }
        auto const dup = take({dy.extent(0), 4 * shape_.channels});
        down_.weight_gradient(saved.down, ddown);
        down_.input_gradient(pass, dup, ddown, {ops::activation::gelu, saved.up.before_activation, false});
        up_.weight_gradient(saved.up, dup);
        up_.input_gradient(pass, dnorm, dup);
        pass.scratch.rewind(inner);
      }
      norm2_.backward(saved.norm2, dy, dnorm, true);
      attention_.backward(pass, saved.attended, dnorm, dy, context);
      norm1_.backward(saved.norm1, dy, dnorm, true);
      pass.scratch.rewind(here);
      return dy;
    }

   private:
    static std::string name(gpt_block const& description, char const* part) {
      return text("transformer.h.", description.index, ".", part);
    }
    // GPT-2 scales what is added to the residual stream down with depth.
    [[nodiscard]] double residual_scale() const { return 0.02 / std::sqrt(2.0 * static_cast<double>(shape_.layers)); }
    [[nodiscard]] ops::dropout_site site(pass<Env> const& pass) const {
      return {pass.training() ? shape_.dropout : 0, pass.key, site_ + 2, pass.batch.ids};
    }

    gpt_shape shape_;
    std::uint32_t site_;
    layer_norm::instance<Env> norm1_;
    attention::instance<Env> attention_;
    layer_norm::instance<Env> norm2_;
    linear::instance<Env> up_;
    linear::instance<Env> down_;
  };
};

/// The last norm, the tied head and the cross-entropy, a chunk of rows at a time: the logits of a large vocabulary
/// are never all in memory.
///
/// Shapes   x (B*T, C), targets (B, T) int32 from the batch; targets < 0 are left out of the loss.
/// Bytes    chunk * vocabulary logits of scratch; saves the gradient of the norm's result (B*T, C).
/// Numerics the loss is a sum in double over rows in order. In training forward also forms the head's gradients, while
///          the logits are there: three products instead of four.
struct gpt_head {
  gpt_shape shape;
  friend bool operator==(gpt_head const&, gpt_head const&) = default;

  template <class Env>
  class instance {
    using space = typename Env::space;
    using value = typename Env::compute;
    using kernels = ops::on<space>;

   public:
    using view = tensor_view<value, space>;
    struct saved {
      typename layer_norm::instance<Env>::saved norm;
      view dnorm;  // (B*T, C)
    };

    explicit instance(gpt_head const& description)
        : shape_(description.shape),
          norm_({shape_.channels}, "transformer.ln_f"),
          tokens_(detail::token_table<Env>(shape_)) {}

    void visit(auto&& each) {
      norm_.visit(each);
      each(tokens_);
    }

    view forward(pass<Env>& pass, saved& saved, view x) {
      auto const normed = norm_.forward(pass, saved.norm, x);  // (B*T,C)
      table_.bind(tokens_.value, ops::orientation::out_in);
      table_.refresh(pass.version);
      if (pass.purpose == purpose::predict) return last_logits(pass, normed);
      auto const targets = pass.batch.targets.template as<std::int32_t>().flat();  // (B*T)
      auto const rows = normed.extent(0);
      if (targets.size() != rows) {
        throw config_error(text("trireme::nn::gpt: ", targets.size(), " targets for ", rows, " tokens"));
      }
      double const weight = pass.weight / static_cast<double>(pass.batch.inputs.extents[1]);
      if (pass.training()) saved.dnorm = pass.take(normed.extents());
      auto const here = pass.scratch.mark();
      auto const logits = pass.scratch.template take<value>({std::min(chunk(), rows), shape_.vocabulary});
      for (std::int64_t first = 0; first < rows; first += chunk()) {
        auto const n = std::min(chunk(), rows - first);
        auto const part = logits.rows(0, n);
        kernels::linear(part, normed.rows(first, n), table_, {});
        pass.loss += kernels::cross_entropy(part, targets.flat(first, n), weight, pass.training());
        if (!pass.training()) continue;
        kernels::linear_backward_input(saved.dnorm.rows(first, n), part, table_, {});
        kernels::linear_backward_weight(tokens_.gradient, {}, normed.rows(first, n), part, ops::orientation::out_in);
      }
      pass.scratch.rewind(here);
      return {};
    }

    view backward(pass<Env>& pass, saved& saved, view) {
      auto const dx = pass.take(saved.dnorm.extents());
      norm_.backward(saved.norm, dx, saved.dnorm, false);
      return dx;
    }

   private:
    // About 4 MiB of float logits, but enough rows to keep the products busy.
    [[nodiscard]] std::int64_t chunk() const {
      return std::clamp<std::int64_t>((std::int64_t{1} << 20) / shape_.vocabulary / 64 * 64, 256, 4096);
    }
    // What follows each sample: (B, vocabulary).
    view last_logits(pass<Env>& pass, view normed) {
      auto const batch = pass.batch.inputs.extents[0];
      auto const context = pass.batch.inputs.extents[1];
      auto const last = pass.take({batch, shape_.channels});
      for (std::int64_t b = 0; b < batch; ++b) {
        kernels::copy(last.rows(b, 1), normed.rows(b * context + context - 1, 1));
      }
      auto const logits = pass.take({batch, shape_.vocabulary});
      kernels::linear(logits, last, table_, {});
      return logits;
    }

    gpt_shape shape_;
    layer_norm::instance<Env> norm_;
    parameter<Env> tokens_;
    ops::weights<value, space> table_;
  };
};

}  // namespace trireme::nn
