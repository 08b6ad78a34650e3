#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/contract/slot.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/text.hpp"

namespace trireme::precision {

/// Activations and products in float16, sums and gradients in float, master weights and moments in float, with a
/// dynamic loss scale: losses are multiplied by it before backward, so that small gradients of activations do not
/// underflow, and gradients are divided by it before the update.
///
/// Method   [Micikevicius et al., "Mixed precision training", 2018]. A step whose gradients are not finite is skipped
///          and halves the scale; `growth_steps` consecutive steps without a skip double it.
/// Numerics the scale is a power of two, so that multiplying and dividing by it does not round.
/// Ranks    the scale follows from the step's vote: it is the same on all of them.
/// Bytes    as precision::bf16.
/// State    the scale, and the number of good steps since it last changed; checkpoints contain both.
/// Errors   config_error for a first scale that is not a power of two from 1 to 2^24.
struct fp16 {
  using policy_category = slot::precision;
  double first_scale = 65536;
  std::int64_t growth_steps = 2000;
  friend bool operator==(fp16 const&, fp16 const&) = default;

  void validate() const { static_cast<void>(instance(*this)); }

  using param = float16;
  using compute = float16;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 5e-3;
  static constexpr std::string_view name = "fp16";
  static constexpr double largest_scale = 16777216;

  class instance {
   public:
    explicit instance(fp16 const& what) : growth_steps_(what.growth_steps), scale_(what.first_scale) {
      double power = 1;
      while (power < scale_ && power < largest_scale) power *= 2;
      if (exactly_equal(power, scale_) && growth_steps_ > 0) return;
      throw config_error(text("trireme::precision::fp16: .first_scale = ", what.first_scale,
                              ", .growth_steps = ", growth_steps_, "; the scale is a power of two from 1 to ",
                              largest_scale, ", and .growth_steps at least 1"));
    }
    [[nodiscard]] double scale() const noexcept { return scale_; }
    [[nodiscard]] bool decide(bool finite) noexcept {
      if (!finite) {
        scale_ = std::max<double>(1, scale_ / 2);
        good_steps_ = 0;
      } else if (++good_steps_ == growth_steps_) {
        scale_ = std::min(largest_scale, scale_ * 2);
        good_steps_ = 0;
      }
      return finite;
    }
    /// A search from the largest scale down to 1 takes 24 steps.
    [[nodiscard]] std::int64_t normal_skips() const noexcept { return 40; }

    template <class F>
    void visit_numbers(F&& f) {
      f("precision/scale", scale_);
      f("precision/good_steps", good_steps_);
    }

   private:
    std::int64_t growth_steps_;
    double scale_;
    std::int64_t good_steps_ = 0;
  };
};

[[nodiscard]] inline std::string to_string(fp16 const& p) {
  return text("precision::fp16{.first_scale = ", p.first_scale, ", .growth_steps = ", p.growth_steps, "}");
}

}  // namespace trireme::precision
