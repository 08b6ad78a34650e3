#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/text.hpp"
#include "trireme/core/type_name.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

namespace detail {

// The wire type of the inner compressor; void if it is a gatherable one.
template <class State>
struct same_wire {};
template <class State>
requires requires { typename State::wire; }
struct same_wire<State> {
  using wire = typename State::wire;
};

}  // namespace detail

/// Adds what a lossy compressor left out of this step's gradient to the next step's.
///
/// Method   [Karimireddy et al., "Error feedback fixes SignSGD", 2019]; converges with any compressor that is a
///          contraction. A decay below 1 forgets old residuals, which may no longer fit the weights.
/// Bytes    as Inner on the wire; each rank keeps one residual of the gradient's size, which checkpoints contain.
/// Ranks    each rank has its own residual: the part of its gradients that it has not sent yet.
/// Errors   config_error unless 0 <= decay <= 1, or if the error of Inner may be larger than the gradient.
/// @models summable_compressor if Inner does, gatherable_compressor if Inner does.
template <class Inner>
struct error_feedback {
  using policy_category = slot::compression;
  Inner inner{};
  float decay = 1;  ///< the part of the residual that is kept from step to step
  friend bool operator==(error_feedback const&, error_feedback const&) = default;

  void validate() const {
    expect_number("compression::error_feedback", ".decay", decay, {.low = 0, .high = 1});
    expect_valid(inner);
    if constexpr (requires { inner.validate_feedback(); }) inner.validate_feedback();
  }

  template <class Env>
  class instance : public detail::same_wire<typename Inner::template instance<Env>> {
    using inner_state = typename Inner::template instance<Env>;
    using space = typename Env::space;
    using gradient = typename Env::gradient;
    static constexpr bool summable = requires { typename inner_state::wire; };

   public:
    instance(error_feedback const& description, bucket_form const& form)
        : inner_(make_compressor_state<Inner, Env>(description.inner, form)),
          form_(form),
          decay_(static_cast<double>(description.decay)),
          residual_(shape{form.elements}),
          next_(shape{form.elements}) {
      ops::on<space>::fill(residual_.view(), 0.0);
    }
    /// Visits the residual, which this rank has not sent yet, and the state of Inner.
    template <class F>
    void visit_state(state_scope scope, F&& f) {
      for (auto const& [info, offset] : form_.tensors) {
        f("residual/" + info->name, state_location{*info, 0, true, 1},
          residual_.view().flat(offset, info->extents.size()));
      }
      if constexpr (requires { inner_.visit_state(scope, f); }) inner_.visit_state(scope, f);
    }
    /// Sets the factor that this step's gradients carry. The residual is stored without it.
    void at_scale(double scale) {
      scale_ = scale;
      if constexpr (requires { inner_.at_scale(scale); }) inner_.at_scale(scale);
    }

    /// Which gradient comes next.
    void at_gradient(encoded_gradient const& which) requires(has_at_gradient<inner_state>) {
      inner_.at_gradient(which);
    }

    [[nodiscard]] std::int64_t payload_bytes(std::int64_t n) const requires(!summable) {
      return inner_.payload_bytes(n);
    }
    [[nodiscard]] std::int64_t payload_elements(std::int64_t n) const requires(has_payload_elements<inner_state>) {
      return inner_.payload_elements(n);
    }
    template <class Payload>
    void encode(tensor_view<gradient, space> slice, Payload payload, std::int64_t first) {
      auto const left = residual_.view().flat(first, slice.size());
      auto const next = next_.view().flat(first, slice.size());
      if (auto const factor = scale_ * decay_; exactly_equal(factor, 1)) {
        ops::on<space>::add(slice, left);
      } else {
        ops::on<space>::accumulate(slice, tensor_view<gradient const, space>(left), factor);
      }
      inner_.encode(slice, payload, first);
      if constexpr (summable) {
        inner_.decode(payload, next);
      } else {
        inner_.decode(payload, next, false);
      }
      ops::on<space>::scale(next, -1.0);
      ops::on<space>::add(next, slice);  // the part that was not sent
      if (!exactly_equal(scale_, 1)) ops::on<space>::scale(next, 1 / scale_);
      forget_gaps(first, slice.size());
    }
    /// To be called when the step was taken: makes what it left out the residual. Without this call the residual stays
    /// as it was before the step.
    void commit() {
      std::swap(residual_, next_);
      if constexpr (has_commit<inner_state>) inner_.commit();
    }
    [[nodiscard]] std::int64_t bytes() const {
      std::int64_t within = 0;
      if constexpr (requires { inner_.bytes(); }) within = inner_.bytes();
      return within + 2 * static_cast<std::int64_t>(residual_.view().bytes());
    }
    template <class Payload, class... Add>
    void decode(Payload payload, tensor_view<gradient, space> slice, Add... add) {
      inner_.decode(payload, slice, add...);
    }

   private:
    // Between tensors gradients are zero, and checkpoints contain no residual there. What a compressor makes of those
    // zeros (a sign, say) must not change the next step.
    void forget_gaps(std::int64_t first, std::int64_t count) {
      if (form_.tensors.empty()) return;
      auto const forget = [&](std::int64_t from, std::int64_t to) {
        auto const begin = std::max(from, first);
        auto const end = std::min(to, first + count);
        if (begin < end) ops::on<space>::fill(next_.view().flat(begin, end - begin), 0.0);
      };
      std::int64_t last = 0;
      for (auto const& each : form_.tensors) {
        forget(last, each.offset);
        last = each.offset + each.info->extents.size();
      }
      forget(last, form_.elements);
    }

    inner_state inner_;
    bucket_form form_;
    double decay_;
    double scale_ = 1;
    tensor<gradient, space> residual_;
    tensor<gradient, space> next_;  // the residual if the step is taken
  };
};

template <class Inner>
[[nodiscard]] std::string to_string(error_feedback<Inner> const& c) {
  auto const inner = describe(c.inner);  // "compression::top_k{.ratio = 0.01f}"
  auto const decay = exactly_equal(c.decay, 1) ? std::string() : text(", .decay = ", c.decay, "f");
  return text("compression::error_feedback<", inner.substr(0, inner.find('{')), ">{.inner = ", inner, decay, "}");
}

}  // namespace trireme::compression
