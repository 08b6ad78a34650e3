#pragma once

#include <cstdint>
#include <string>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/nn/linear.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// Causal self-attention with its two projections: residual + proj(attention(x w_qkv + b)).
///
/// Shapes   x, y, residual (batch * context, channels); queries, keys and values lie side by side in one product of
///          3 * channels columns; head h has columns [h * channels/heads, (h+1) * channels/heads) of each third.
/// Bytes    saves queries, keys, values, the output of the heads, and one number a head and row: no context x context
///          matrix is kept.
/// Ranks    cut by heads: a rank has the columns of its heads in c_attn, and their rows in c_proj.
/// Errors   config_error if a group has more ranks than there are heads.
/// Method   [Vaswani et al., 2017], blockwise with recomputation [Dao et al., 2022].
struct attention {
  std::int64_t channels = 0;
  std::int64_t heads = 1;
  double dropout = 0;      ///< of the attention weights, and of the projection's result
  std::uint32_t site = 0;  ///< tells this layer's random numbers from other layers'; uses site and site + 1
  double projection_scale = 0.02;
  friend bool operator==(attention const&, attention const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class attention::instance {
  using space = typename Env::space;
  using accumulate = typename Env::accumulate;
  using kernels = ops::on<space>;
  using projection = linear::instance<Env>;

 public:
  using view = tensor_view<typename Env::compute, space>;
  struct saved {
    typename projection::saved qkv;  // its x is this layer's input, the rows that lie here
    typename projection::saved out;  // its x is the output of the heads here (rows, channels here)
    view projected;                  // queries, keys and values here; between the halves of backward, their gradient
    attention_state<Env> attended;
  };

  instance(attention const& description, std::string const& name, share own = {})
      : what_(description),
        heads_(heads_of(description, own)),
        qkv_({.inputs = what_.channels, .outputs = 3 * what_.channels, .fused = 3}, name + ".c_attn",
             part(own, linear_part::axis::outputs)),
        out_({.inputs = what_.channels,
              .outputs = what_.channels,
              .start = {initial::distribution::normal, what_.projection_scale}},
             name + ".c_proj", part(own, linear_part::axis::inputs)) {}

  void visit(auto&& each) {
    qkv_.visit(each);
    out_.visit(each);
  }

  /// @param x        the rows that lie here, as is residual.
  /// @param rows     of all samples together.
  /// @param context  rows of one sample that lie here.
  view forward(pass<Env>& pass, saved& kept, view x, view residual, std::int64_t rows, std::int64_t context) {
    auto const shape = of(rows, context);
    auto& queries_keys_values = kept.attended.qkv;
    auto& lse = kept.attended.lse;
    queries_keys_values = kept.projected = qkv_.forward(pass, kept.qkv, pass.group.gather(x, rows, pass.scratch));
    kept.qkv.x = x;
    auto const attended = pass.take({rows, shape.channels});
    if (auto& group = context_group<Env>::of(pass); group.size() == 1) {
      lse = pass.activations.template take<accumulate>({shape.batch, shape.heads, shape.context});
      kernels::causal_attention(attended, lse, queries_keys_values, shape, pass.scratch, site(pass, 0));
    } else {
      group.attend(attended, kept.attended, shape, pass.activations, pass.scratch, site(pass, 0));
    }
    return out_.end_branch(pass, kept.out, attended, residual, site(pass, 1));
  }

  /// Returns the gradient of x, in the memory of dx (all rows, channels); the residual's is dy itself.
  /// @param when  later: weight_gradient() does what this leaves out.
  view backward(pass<Env>& pass, saved& kept, view dx, view dy, std::int64_t context,
                weight_half when = weight_half::at_once) {
    auto const rows = dx.extent(0);
    auto const shape = of(rows, context);
    auto const here = pass.scratch.mark();
    auto const take = [&](trireme::shape extents) {
      return pass.scratch.template take<typename Env::compute>(extents);
    };
    auto const dprojected = out_.branch_gradient(pass, kept.out, dy, site(pass, 1), when);
    auto const dheads = take({rows, shape.channels});
    if (when == weight_half::at_once) out_.weight_gradient(pass, kept.out.x, dprojected);
    out_.input_gradient(pass, dheads, dprojected);
    auto const dqkv = take({rows, 3 * shape.channels});
    if (auto& group = context_group<Env>::of(pass); group.size() == 1) {
      kernels::causal_attention_backward(dqkv, dheads, kept.out.x, kept.attended.lse, kept.attended.qkv, shape,
                                         pass.scratch, site(pass, 0));
    } else {
      group.attend_backward(dqkv, dheads, kept.out.x, kept.attended, shape, pass.scratch, site(pass, 0));
    }
    if (when == weight_half::at_once) {
      qkv_.weight_gradient(pass, pass.group.gather(kept.qkv.x, rows, pass.scratch), dqkv);
    } else {  // nobody needs queries, keys and values any more
      kept.qkv.dy = kept.projected;
      kernels::copy(kept.qkv.dy, dqkv);
    }
    auto const sum = pass.group.reduce(qkv_.input_gradient_term(pass, dx, dqkv));
    pass.scratch.rewind(here);
    return sum;
  }
  void weight_gradient(pass<Env>& pass, saved const& kept) {
    auto const rows = kept.out.x.extent(0);
    out_.weight_gradient(pass, kept.out.x, pass.group.gather(kept.out.dy, rows, pass.scratch));
    qkv_.weight_gradient(pass, pass.group.gather(kept.qkv.x, rows, pass.scratch), kept.qkv.dy);
  }

 private:
  static interval heads_of(attention const& description, share own) {
    if (own.size > description.heads) {
      throw config_error(text("trireme::nn::attention: ", description.heads, " heads cannot be cut into ", own.size,
                              " ways; a tensor group has at most as many ranks as a layer has heads"));
    }
    return own.of(description.heads);
  }
  [[nodiscard]] linear_part part(share own, linear_part::axis axis) const {
    if (own.size == 1) return {};
    auto const width = what_.channels / what_.heads;
    return {axis, {heads_.first * width, heads_.count * width}, own.rank};
  }
  [[nodiscard]] ops::attention_shape of(std::int64_t rows, std::int64_t context) const {
    return {rows / context, context, heads_.count, what_.channels / what_.heads * heads_.count, heads_.first};
  }
  [[nodiscard]] ops::dropout_site site(pass<Env> const& pass, std::uint32_t which) const {
    return {pass.training() ? what_.dropout : 0, pass.key, what_.site + which, pass.batch.ids};
  }

  attention what_;
  interval heads_;  // that lie here
  projection qkv_;
  projection out_;
};

}  // namespace trireme::nn
