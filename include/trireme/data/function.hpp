#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/shape.hpp"

namespace trireme::data {

/// The number, range and seed of a function's samples.
struct function_options {
  std::int64_t samples = 4096;
  float low = -3.14F;
  float high = 3.14F;
  std::uint64_t seed = 0;
  friend bool operator==(function_options const&, function_options const&) = default;
};

/// "trireme::data::function_options{.samples = 4096, ...}"
[[nodiscard]] inline std::string to_string(function_options const& options) {
  return text("trireme::data::function_options{.samples = ", options.samples, ", .low = ", options.low,
              "F, .high = ", options.high, "F, .seed = ", options.seed, "}");
}

/// Samples (x, f(x)) of a function float -> float, with x uniform in [low, high).
///
/// Shapes   inputs (n, 1) float, targets (n, 1) float.
/// Numerics input i depends on (seed, i) alone, so the dataset is the same on every rank without being stored.
/// Threads  read() calls f from several threads at once.
/// Errors   throws config_error if there are no samples or if low < high does not hold for finite bounds.
/// @models  trireme::dataset
template <class Function>
requires std::invocable<Function const&, float> && std::convertible_to < std::invoke_result_t<Function const&, float>,
float > class function {
 public:
  explicit function(Function f, function_options options = {}) : f_(std::move(f)), options_(options) {
    if (options.samples < 1) {
      throw config_error(text("trireme::data::function: .samples = ", options.samples, ", but at least one is needed"));
    }
    if (!std::isfinite(options.low) || !std::isfinite(options.high) || !(options.low < options.high)) {
      throw config_error(text("trireme::data::function: inputs cannot be drawn from [", options.low, ", ", options.high,
                              "): .low must be less than .high, and both finite"));
    }
  }

  [[nodiscard]] function_options const& options() const noexcept { return options_; }
  [[nodiscard]] std::int64_t size() const noexcept { return options_.samples; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::f32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::f32; }
  [[nodiscard]] shape input_shape() const { return {1}; }
  [[nodiscard]] shape target_shape() const { return {1}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* const x = static_cast<float*>(inputs);
    auto* const y = static_cast<float*>(targets);
    for (std::size_t row = 0; row < ids.size(); ++row) {
      x[row] = input(ids[row]);
      y[row] = static_cast<float>(f_(x[row]));
    }
  }

  /// The input of sample `id`.
  [[nodiscard]] float input(std::int64_t id) const noexcept {
    auto const unit = unit_float(random_block({options_.seed, 0}, site, static_cast<std::uint64_t>(id), 0)[0]);
    // An explicit fma, because whether a compiler fuses a product and a sum by itself depends on its flags. Rounding to
    // float may give `high` itself; then the largest number below it is used.
    auto const x = std::fma(double{options_.high} - double{options_.low}, double{unit}, double{options_.low});
    auto const rounded = static_cast<float>(x);
    return rounded < options_.high ? rounded : std::nextafter(options_.high, options_.low);
  }

 private:
  static constexpr std::uint32_t site = 0x66756e63U;  // "func"
  Function f_;
  function_options options_;
};

}  // namespace trireme::data
