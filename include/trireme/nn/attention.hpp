#pragma once

#include <cstdint>
#include <string>

#include "trireme/contract/model.hpp"
#include "trireme/nn/linear.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// Causal self-attention with its two projections: residual + proj(attention(x w_qkv + b)).
///
/// Shapes   x, y, residual (batch * context, channels); queries, keys and values lie side by side in one product of
///          3 * channels columns; head h has columns [h * channels/heads, (h+1) * channels/heads) of each third.
/// Bytes    saves queries, keys, values, the output of the heads, and one number a head and row: no context x context
///          matrix is kept.
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
    typename projection::saved qkv;      // its x is this layer's input
    typename projection::saved out;      // its x is the heads' output (rows, channels)
    view packed;                         // (rows, 3 channels)
    tensor_view<accumulate, space> lse;  // (batch, heads, context): log of the softmax's denominators
  };

  instance(attention const& description, std::string const& name)
      : what_(description),
        qkv_({.inputs = what_.channels, .outputs = 3 * what_.channels}, name + ".c_attn"),
        out_({.inputs = what_.channels,
              .outputs = what_.channels,
              .start = {initial::distribution::normal, what_.projection_scale}},
             name + ".c_proj") {}

  void visit(auto&& each) {
    qkv_.visit(each);
    out_.visit(each);
  }

  /// @param context  rows of one sample.
  view forward(pass<Env>& pass, saved& saved, view x, view residual, std::int64_t context) {
    auto const shape = of(x, context);
    saved.packed = qkv_.forward(pass, saved.qkv, x);
    saved.lse = pass.activations.template take<accumulate>({shape.batch, shape.heads, shape.context});
    auto const heads = pass.take(x.extents());
    kernels::causal_attention(heads, saved.lse, saved.packed, shape, pass.scratch, site(pass, 0));
    auto const drop = site(pass, 1);
    auto const y = out_.forward(pass, saved.out, heads, drop.active() ? view{} : residual);
    if (drop.active()) {
      kernels::dropout(y, drop);
      kernels::add(y, residual);
    }
    return y;
  }

  /// dx gets the gradient of x; the residual's is dy itself.
  void backward(pass<Env>& pass, saved const& saved, view dx, view dy, std::int64_t context) {
    auto const shape = of(dx, context);
    auto const here = pass.scratch.mark();
    auto const take = [&](trireme::shape extents) {
      return pass.scratch.template take<typename Env::compute>(extents);
    };
    auto dprojected = dy;
    if (auto const drop = site(pass, 1); drop.active()) {
      dprojected = take(dy.extents());
      kernels::copy(dprojected, dy);
      kernels::dropout(dprojected, drop);
    }
    auto const dheads = take(dx.extents());
    out_.weight_gradient(saved.out, dprojected);
    out_.input_gradient(pass, dheads, dprojected);
    auto const dqkv = take({dx.extent(0), 3 * what_.channels});
    kernels::causal_attention_backward(dqkv, dheads, saved.out.x, saved.lse, saved.packed, shape, pass.scratch,
                                       site(pass, 0));
    qkv_.weight_gradient(saved.qkv, dqkv);
    qkv_.input_gradient(pass, dx, dqkv);
    pass.scratch.rewind(here);
  }

 private:
  [[nodiscard]] ops::attention_shape of(view x, std::int64_t context) const {
    return {x.extent(0) / context, context, what_.heads, what_.channels};
  }
  [[nodiscard]] ops::dropout_site site(pass<Env> const& pass, std::uint32_t which) const {
    return {pass.training() ? what_.dropout : 0, pass.key, what_.site + which, pass.batch.ids};
  }

  attention what_;
  projection qkv_;
  projection out_;
};

}  // namespace trireme::nn
