#pragma once

// A precision with a number format that is not an element type, as its user would write it after
// docs/write_a_policy.md, with public headers alone.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <trireme/trireme.hpp>

namespace user {

using namespace trireme;

/// Products of 8-bit floats: inputs and weights as E4M3, gradients as E5M2, as [Micikevicius et al., "FP8 formats for
/// deep learning", 2022] has them; what they read is rounded to these, and multiplied as float. Each kind of operand
/// has one scale, a power of two that brings the largest number of the last steps to the end of the format's range.
struct fp8 {
  using policy_category = slot::precision;
  using param = float;
  using compute = float;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 5e-2;
  static constexpr std::string_view name = "fp8";
  friend bool operator==(fp8 const&, fp8 const&) = default;

  class instance {
   public:
    explicit instance(fp8 const&) {}
    double scale() const { return 1; }
    std::int64_t normal_skips() const { return 10; }

    void operand(product_operand const& which, tensor_view<float const> from, tensor_view<float> to) {
      auto const kind = static_cast<std::size_t>(which.is);
      bool const of_gradient = which.is == product_operand::role::gradient;
      double largest = 0;
      for (std::size_t i = 0; i < from.span().size(); ++i) {
        float const x = from.span()[i];
        largest = std::max(largest, std::abs(static_cast<double>(x)));
        to.span()[i] = of_gradient ? rounded(x, scales_[kind], 2, -14, 57344) : rounded(x, scales_[kind], 3, -6, 448);
      }
      if (which.training) seen_[kind] = std::max(seen_[kind], largest);
    }
    /// What this step has seen; before decide() it is what all ranks have seen.
    std::span<double> maxima() { return seen_; }

    bool decide(bool finite) {
      for (std::size_t kind = 0; finite && kind < kinds; ++kind) {
        auto* const history = history_ + kind * steps;
        std::copy_backward(history, history + steps - 1, history + steps);
        history[0] = seen_[kind];
        double const largest = *std::max_element(history, history + steps);
        double const end = kind == static_cast<std::size_t>(product_operand::role::gradient) ? 57344 : 448;
        if (largest > 0) scales_[kind] = std::exp2(std::floor(std::log2(end / largest)));
      }
      std::fill_n(seen_, kinds, 0.0);
      return finite;
    }
    template <class F>
    void visit_numbers(F&& f) {
      static constexpr std::string_view names[kinds] = {"input", "weight", "gradient"};
      for (std::size_t kind = 0; kind < kinds; ++kind) {
        f(text("precision/scale.", names[kind]), scales_[kind]);
        for (std::size_t i = 0; i < steps; ++i)
          f(text("precision/largest.", names[kind], ".", i), history_[kind * steps + i]);
      }
    }

   private:
    static constexpr std::size_t kinds = 3;
    static constexpr std::size_t steps = 4;

    /// The nearest number of a format with so many bits behind the point, in units of 1 / scale; larger ones are its
    /// largest.
    static float rounded(float x, double scale, int bits, int least_exponent, double largest) {
      double const y = std::clamp(static_cast<double>(x) * scale, -largest, largest);
      if (y == 0 || std::isnan(y)) return x;
      double const unit = std::exp2(std::max(std::ilogb(y), least_exponent) - bits);
      return static_cast<float>(std::nearbyint(y / unit) * unit / scale);
    }

    double scales_[kinds] = {1, 1, 1};
    double seen_[kinds] = {};
    double history_[kinds * steps] = {};
  };
};

}  // namespace user
