#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/nn/gpt_units.hpp"
#include "trireme/nn/layer_norm.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// The last norm, the tied head and the cross-entropy, a chunk of rows at a time: the logits of a large vocabulary
/// are never all in memory.
///
/// Shapes   x (B*T, C), targets (B, T) int32 from the batch; targets < 0 are left out of the loss.
/// Bytes    chunk * vocabulary logits of scratch; saves the gradient of the norm's result (B*T, C).
/// Ranks    each of a tensor group has the logits of some tokens: the largest one and the sum of exponentials are the
///          group's, the target's logit comes from whoever has it. All have the loss.
/// Numerics the loss is a sum in double over rows in order. In training forward also forms the head's gradients, while
///          the logits are there: three products instead of four. So its backward has no second half.
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
      view dnorm;  // (B*T, C), the rows that lie here
    };

    explicit instance(gpt_head const& description, share own = {})
        : shape_(description.shape),
          part_(detail::tokens_here(shape_, own)),
          norm_({shape_.channels}, "transformer.ln_f", own),
          tokens_(detail::token_table<Env>(shape_, own)) {}

    void visit(auto&& each) {
      norm_.visit(each);
      each(tokens_);
    }

    view forward(pass<Env>& pass, saved& kept, view x) {
      auto const rows = pass.batch.inputs.extents.size();
      auto const normed = pass.group.gather(norm_.forward(pass, kept.norm, x), rows, pass.scratch);  // (B*T,C)
      table_.bind(tokens_.value, ops::orientation::out_in);
      table_.refresh(pass.version);
      if (pass.purpose == purpose::predict) return last_logits(pass, normed);
      auto const targets = pass.batch.targets.template as<std::int32_t>().flat();  // (B*T)
      if (targets.size() != rows) {
        throw config_error(text("trireme::nn::gpt: ", targets.size(), " targets for ", rows, " tokens"));
      }
      auto const& positions = context_group<Env>::of(pass).part();
      double const weight = pass.weight / static_cast<double>(positions.whole(pass.batch.inputs.extents[1]));
      view dnormed;
      if (pass.training()) dnormed = pass.take(normed.extents());
      auto const here = pass.scratch.mark();
      auto const logits = pass.scratch.template take<value>({std::min(chunk(), rows), words()});
      for (std::int64_t first = 0; first < rows; first += chunk()) {
        auto const n = std::min(chunk(), rows - first);
        auto const part = logits.rows(0, n);
        kernels::linear(part, normed.rows(first, n), table_, {});
        pass.loss += cross_entropy(pass, part, targets.flat(first, n), weight);
        if (!pass.training()) continue;
        kernels::linear_backward_input(dnormed.rows(first, n), part, table_, {});
        kernels::linear_backward_weight(tokens_.gradient, {}, normed.rows(first, n), part, ops::orientation::out_in);
      }
      pass.scratch.rewind(here);
      if (pass.training()) kept.dnorm = pass.group.reduce(partial_sum<view>(dnormed));
      return {};
    }

    view backward(pass<Env>& pass, saved& kept, view) {
      auto const dx = pass.take(kept.dnorm.extents());
      norm_.backward(pass, kept.norm, dx, kept.dnorm, false);
      return dx;
    }

   private:
    // Of the tokens that lie here.
    [[nodiscard]] std::int64_t words() const { return tokens_.info.extents[0]; }
    // About 4 MiB of float logits, but enough rows to keep the products busy.
    [[nodiscard]] std::int64_t chunk() const {
      return std::clamp<std::int64_t>((std::int64_t{1} << 20) / shape_.vocabulary / 64 * 64, 256, 4096);
    }
    loss_sum cross_entropy(pass<Env>& pass, view logits, tensor_view<std::int32_t const, space> targets,
                           double weight) {
      if (pass.group.size() == 1) return kernels::cross_entropy(logits, targets, weight, pass.training());
      auto const n = targets.size();
      auto const here = pass.scratch.mark();
      auto const peaks = pass.scratch.template take<typename Env::accumulate>({n});
      auto const both = pass.scratch.template take<typename Env::accumulate>({2 * n});
      auto const masses = both.flat(0, n);
      auto const chosen = both.flat(n, n);
      kernels::row_peaks(logits, peaks);
      pass.group.max(peaks);
      kernels::row_masses(logits, targets, part_, peaks, masses, chosen);
      pass.group.sum(both);
      auto const loss =
          kernels::cross_entropy_part(logits, targets, part_, peaks, masses, chosen, weight, pass.training());
      pass.scratch.rewind(here);
      return loss;
    }
    // What follows each sample: (B, vocabulary).
    view last_logits(pass<Env>& pass, view normed) {
      auto const batch = pass.batch.inputs.extents[0];
      auto const context = pass.batch.inputs.extents[1];
      auto const last = pass.take({batch, shape_.channels});
      for (std::int64_t b = 0; b < batch; ++b) {
        kernels::copy(last.rows(b, 1), normed.rows(b * context + context - 1, 1));
      }
      auto const here = pass.take({batch, words()});
      kernels::linear(here, last, table_, {});
      if (pass.group.size() == 1) return here;
      auto const sums = pass.activations.template take<typename Env::accumulate>({batch, shape_.vocabulary});
      kernels::fill(sums, 0.0);
      for (std::int64_t b = 0; b < batch; ++b) {
        kernels::copy(sums.flat(b * shape_.vocabulary + part_.first, words()), here.flat(b * words(), words()));
      }
      pass.group.sum(sums);
      auto const logits = pass.take({batch, shape_.vocabulary});
      kernels::copy(logits, sums);
      return logits;
    }

    gpt_shape shape_;
    ops::table_part part_;
    layer_norm::instance<Env> norm_;
    parameter<Env> tokens_;
    ops::weights<value, space> table_;
  };
};

}  // namespace trireme::nn
