#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "trireme/compression/detail/chosen_elements.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

namespace detail {

/// The ratio in a step of a run in which it falls: 1/4, 1/16, 1/64 and 1/256 in the quarters of `warmup` steps, but at
/// least `last`, which it is from then on.
[[nodiscard]] inline float falling_ratio(float last, std::int64_t warmup, std::int64_t step) noexcept {
  if (step >= warmup) return last;
  return std::max(last, std::ldexp(0.25F, -2 * static_cast<int>(4 * step / warmup)));
}

}  // namespace detail

/// Like top_k inside error_feedback, but each rank applies the momentum before it chooses what to send, so that an
/// element that waits for several steps arrives with its momentum. Use it with optim::sgd{.momentum = 0}.
///
/// Method   [Lin et al., "Deep Gradient Compression", 2018]: u = momentum u + gradient, v = v + u; the k largest
///          elements of v are sent, and u and v become 0 there (momentum correction and momentum factor masking).
///          `clip` limits the gradient that a rank adds to u, tensor by tensor, to a norm of clip / sqrt(p) on p ranks,
///          so that the norm of a sum of p independent ones is about `clip` at most (local gradient clipping). The
///          paper clips by the norm of all tensors together, which is not known while backward still runs. The ratio
///          falls to its value within `warmup` steps: 1/4, 1/16, 1/64 and 1/256 in a quarter of them each, but never
///          less than `ratio`.
/// Shapes   a piece of n gradients keeps k = ceil(ratio * n), at least 1. Where a strategy cuts a tensor into slices,
///          `clip` holds for each of them.
/// Bytes    as top_k; 2 n in the first quarter of `warmup`. Plans have those of a step after it. Kept per rank: u and
///          v, each with a copy for a skipped step, so four times the gradient.
/// Ranks    each rank has its own u and v; payloads are added in rank order.
/// Numerics lossy and biased; dgc{.ratio = 1} sends the gradient: every u is 0 after each step. Norms are exact sums
///          of squares, so they do not depend on the machine. In CUDA memory each is a wait of the host.
/// Errors   config_error unless 0 < ratio <= 1, 0 <= momentum < 1, clip >= 0 and warmup >= 0, or if the optimizer
///          applies momentum, too.
/// @models gatherable_compressor          @see compression::error_feedback, compression::top_k
struct dgc {
  TRIREME_NEEDS_KERNELS("compression::dgc", selection);
  using policy_category = slot::compression;
  float ratio = 0.01F;
  double momentum = 0.9;
  double clip = 0;          ///< limit of the norm of a tensor's gradient, before momentum; 0: none
  std::int64_t warmup = 0;  ///< steps until the ratio is `ratio`
  friend bool operator==(dgc const&, dgc const&) = default;

  void validate() const {
    detail::expect_ratio("dgc", ratio);
    expect_number("compression::dgc", ".momentum", momentum, below_one);
    expect_number("compression::dgc", ".clip", clip, not_negative);
    expect_number("compression::dgc", ".warmup", warmup, not_negative);
  }
  /// The part of the elements that is sent in a step of the run.
  [[nodiscard]] float ratio_at(std::int64_t step) const noexcept { return detail::falling_ratio(ratio, warmup, step); }
  void validate_feedback() const {
    throw config_error("trireme::compression::dgc keeps what it has not sent itself; use it without error_feedback");
  }
  /// See compressor.hpp.
  void expect_momentum(double of_optimizer) const {
    if (exactly_equal(of_optimizer, 0)) return;
    throw config_error(text("trireme::compression::dgc applies momentum itself, and the optimizer has a momentum of ",
                            of_optimizer,
                            ", too; use it with optim::sgd{.momentum = 0} (in parallel::diloco with .outer_momentum = "
                            "0)"));
  }

  template <class Env>
  class instance {
    using space = typename Env::space;
    using gradient = typename Env::gradient;
    using view = tensor_view<gradient, space>;
    using constant = tensor_view<gradient const, space>;
    using kernels = ops::on<space>;
    using payload_type = detail::chosen_elements<gradient, space>;

   public:
    instance(dgc const& description, bucket_form const& form)
        : last_ratio_(description.ratio),
          warmup_(description.warmup),
          momentum_(description.momentum),
          clip_(description.clip),
          form_(form),
          ratio_(description.ratio_at(0)) {
      description.validate();
      for (auto* const each : {&velocity_, &residual_, &next_velocity_, &next_residual_}) {
        *each = tensor<gradient, space>(shape{form.elements});
        kernels::fill(each->view(), 0.0);
      }
      zeros_ = tensor<gradient, space>(shape{kept(form.elements)});
      kernels::fill(zeros_.view(), 0.0);
    }
    void at_scale(double scale) { scale_ = scale; }
    void at_gradient(encoded_gradient const& which) {
      ranks_ = which.ranks;
      // What runs in phantom memory is a plan, which shows a step of the long rest of the run.
      ratio_ = std::is_same_v<space, phantom> ? last_ratio_ : detail::falling_ratio(last_ratio_, warmup_, which.step);
    }
    /// Before the first at_gradient() those of the first step, which sends the most.
    [[nodiscard]] std::int64_t payload_bytes(std::int64_t n) const { return payload_type::bytes(kept(n)); }
    void encode(view slice, tensor_view<std::byte, space> payload, std::int64_t first) {
      auto const n = slice.size();
      if (clip_ > 0) limit_norms(slice, first);
      auto const u = next_velocity_.view().flat(first, n);
      auto const v = next_residual_.view().flat(first, n);
      kernels::copy(u, constant(velocity_.view().flat(first, n)));
      kernels::scale(u, momentum_);
      kernels::accumulate(u, constant(slice), 1 / scale_);
      kernels::copy(v, constant(residual_.view().flat(first, n)));
      kernels::add(v, constant(u));
      kernels::copy(slice, constant(v));
      if (!exactly_equal(scale_, 1)) kernels::scale(slice, scale_);
      payload_type const to(payload, kept(n));
      kernels::select_largest(slice, to.indices, to.values);
      auto const nothing = constant(zeros_.view().flat(0, kept(n)));
      kernels::scatter(u, to.indices, nothing, false);
      kernels::scatter(v, to.indices, nothing, false);
    }
    void decode(tensor_view<std::byte, space> payload, view slice, bool add) {
      payload_type const from(payload, kept(slice.size()));
      if (!add) kernels::fill(slice, 0.0);
      kernels::scatter(slice, from.indices, from.values, add);
    }
    void commit() {
      std::swap(velocity_, next_velocity_);
      std::swap(residual_, next_residual_);
    }
    template <class F>
    void visit_state(state_scope, F&& f) {
      for (auto const& [info, offset] : form_.tensors) {
        auto const n = info->extents.size();
        f("residual/" + info->name, state_location{*info, 0, true, 1}, residual_.view().flat(offset, n));
        f("dgc_velocity/" + info->name, state_location{*info, 0, true, 1}, velocity_.view().flat(offset, n));
      }
    }
    [[nodiscard]] std::int64_t bytes() const {
      return static_cast<std::int64_t>(4 * velocity_.view().bytes() + zeros_.view().bytes());
    }

   private:
    [[nodiscard]] std::int64_t kept(std::int64_t n) const { return detail::kept_elements(ratio_, n); }
    // Of each tensor what lies in the slice, whose first element is the bucket's element `first`.
    void limit_norms(view slice, std::int64_t first) {
      auto const limit = clip_ / std::sqrt(static_cast<double>(ranks_)) * scale_;
      for (auto const& [info, offset] : form_.tensors) {
        auto const begin = std::max(offset, first);
        auto const end = std::min(offset + info->extents.size(), first + slice.size());
        if (begin >= end) continue;
        auto const own = slice.flat(begin - first, end - begin);
        exact_sum squares;
        kernels::sum_of_squares(constant(own), squares);
        auto const norm = std::sqrt(squares.value());
        if (norm > limit) kernels::scale(own, limit / norm);
      }
    }

    float last_ratio_;
    std::int64_t warmup_;
    double momentum_, clip_;
    bucket_form form_;
    float ratio_;  // of the gradient that at_gradient() named
    int ranks_ = 1;
    double scale_ = 1;
    tensor<gradient, space> velocity_, residual_;            // u and v, without the factor of the loss
    tensor<gradient, space> next_velocity_, next_residual_;  // the same if the step is taken
    tensor<gradient, space> zeros_;
  };
};

[[nodiscard]] inline std::string to_string(dgc const& c) {
  return text("compression::dgc{.ratio = ", c.ratio, "f, .momentum = ", c.momentum,
              c.clip > 0 ? text(", .clip = ", c.clip) : "", c.warmup > 0 ? text(", .warmup = ", c.warmup) : "", "}");
}

}  // namespace trireme::compression
