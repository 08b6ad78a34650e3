#pragma once

#include <cstdint>
#include <string>

#include "trireme/contract/expert_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/attention.hpp"
#include "trireme/nn/detail/own_rows.hpp"
#include "trireme/nn/experts.hpp"
#include "trireme/nn/gpt_units.hpp"
#include "trireme/nn/layer_norm.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// A transformer block with a mixture of experts in the place of its mlp: x + attention(norm(x)), then
/// x + dropout(experts(norm(x))). Its backward does not come apart.
///
/// Shapes   x, y (B*T, C): the rows of them that lie here.
/// Ranks    experts are dealt out over an expert group. A tensor group shares the heads; each of its ranks runs the
///          router and the experts on all rows, with the same bits.
struct gpt_expert_block {
  gpt_shape shape;
  std::int64_t index = 0;
  std::int64_t experts = 1;
  std::int64_t top_k = 1;
  double balance = 0;
  friend bool operator==(gpt_expert_block const&, gpt_expert_block const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class gpt_expert_block::instance {
  using space = typename Env::space;
  using value = typename Env::compute;
  using kernels = ops::on<space>;

 public:
  using view = tensor_view<value, space>;
  struct saved {
    typename layer_norm::instance<Env>::saved norm1;
    typename attention::instance<Env>::saved attended;
    typename layer_norm::instance<Env>::saved norm2;
    typename nn::experts::instance<Env>::saved mixed;
  };

  explicit instance(gpt_expert_block const& description, rank_groups<Env> const& groups = rank_groups<Env>::none())
      : shape_(description.shape),
        site_(detail::first_site_of(description.index) + 2),
        norm1_({shape_.channels}, detail::name_in_block(description.index, "ln_1"), own_of(groups)),
        attention_(detail::attention_of(shape_, description.index), detail::name_in_block(description.index, "attn"),
                   own_of(groups)),
        norm2_({shape_.channels}, detail::name_in_block(description.index, "ln_2"), own_of(groups)),
        experts_({.channels = shape_.channels,
                  .hidden = 4 * shape_.channels,
                  .count = description.experts,
                  .chosen = description.top_k,
                  .balance = description.balance,
                  .projection_scale = detail::residual_scale(shape_)},
                 detail::name_in_block(description.index, "mlp"), expert_group<Env>::of(groups).share()) {}

  void visit(auto&& each) {
    norm1_.visit(each);
    attention_.visit(each);
    norm2_.visit(each);
    experts_.visit(each);
  }

  view forward(pass<Env>& pass, saved& kept, view x) {
    auto const rows = pass.batch.inputs.extents.size();
    auto const context = pass.batch.inputs.extents[1];
    auto const attended =
        attention_.forward(pass, kept.attended, norm1_.forward(pass, kept.norm1, x), x, rows, context);
    auto const normed = norm2_.forward(pass, kept.norm2, attended);
    auto const all = experts_.forward(pass, kept.mixed, pass.group.gather(normed, rows, pass.scratch), context);
    kept.mixed.x = normed;
    auto const y = rows_here(pass, all);
    detail::drop_rows(pass, y, rows, site(pass));
    kernels::add(y, attended);
    return y;
  }

  // dy becomes dx in place, as in gpt_block.
  view backward(pass<Env>& pass, saved& kept, view dy) {
    auto const rows = pass.batch.inputs.extents.size();
    auto const context = pass.batch.inputs.extents[1];
    auto const here = pass.scratch.mark();
    auto const dbranch = pass.scratch.template take<value>({rows, shape_.channels});
    auto const dmixed = pass.scratch.template take<value>(dy.extents());
    kernels::copy(dmixed, dy);
    detail::drop_rows(pass, dmixed, rows, site(pass));
    kept.mixed.x = pass.group.gather(kept.mixed.x, rows, pass.scratch);
    experts_.backward(pass, kept.mixed, dbranch, pass.group.gather(dmixed, rows, pass.scratch), context);
    norm2_.backward(pass, kept.norm2, dy, rows_here(pass, dbranch), true);
    auto const dattention = attention_.backward(pass, kept.attended, dbranch, dy, context);
    norm1_.backward(pass, kept.norm1, dy, dattention, true);
    pass.scratch.rewind(here);
    return dy;
  }

  void serve_forward(pass<Env>& pass, saved& kept) { experts_.serve_forward(pass, kept.mixed); }
  void serve_backward(pass<Env>& pass, saved& kept) { experts_.serve_backward(pass, kept.mixed); }

 private:
  static share own_of(rank_groups<Env> const& groups) { return tensor_group<Env>::of(groups).share(); }
  [[nodiscard]] ops::dropout_site site(pass<Env> const& pass) const {
    return {pass.training() ? shape_.dropout : 0, pass.key, site_, pass.batch.ids};
  }
  static view rows_here(pass<Env> const& pass, view all) {
    auto const here = pass.group.rows_here(all.extent(0));
    return all.rows(here.first, here.count);
  }

  gpt_shape shape_;
  std::uint32_t site_;  // of the second branch's dropout
  layer_norm::instance<Env> norm1_;
  attention::instance<Env> attention_;
  layer_norm::instance<Env> norm2_;
  nn::experts::instance<Env> experts_;
};

}  // namespace trireme::nn
