#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/tensor.hpp"

namespace toy {

/// A plain model: a piecewise linear function on [-1, 1] through knots and a shift, with kernels of its own.
struct spline {
  std::vector<float> knots = std::vector<float>(9, 0.5F);
  std::vector<float> gradient = std::vector<float>(9);
  std::vector<float> shift{0.25F};
  std::vector<float> shift_gradient{0};
  std::vector<float> slopes{};  // d(mean loss) / d(prediction), of the last forward
  trireme::samples last{};

  void visit_parameters(auto&& visit) {
    visit("values at the knots of the spline", trireme::tensor_view{knots}, trireme::tensor_view{gradient});
    visit("shift", trireme::tensor_view{shift}, trireme::tensor_view{shift_gradient});
  }
  float forward(trireme::samples const& batch) {
    last = batch;
    auto const x = batch.inputs.as<float>();
    auto const y = batch.targets.as<float>();
    auto const n = static_cast<float>(batch.count());
    slopes.reserve(64);
    slopes.clear();
    double loss = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      auto const [left, part] = place(x[i]);
      float const error = (1 - part) * knots[left] + part * knots[left + 1] + shift[0] - y[i];
      loss += static_cast<double>(error * error);
      slopes.push_back(2 * error / n);
    }
    return static_cast<float>(loss / static_cast<double>(n));
  }
  void backward(auto&& ready) {
    auto const x = last.inputs.as<float>();
    std::fill(gradient.begin(), gradient.end(), 0.0F);
    shift_gradient[0] = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      auto const [left, part] = place(x[i]);
      auto const slope = slopes[static_cast<std::size_t>(i)];
      gradient[left] += slope * (1 - part);
      gradient[left + 1] += slope * part;
      shift_gradient[0] += slope;
    }
    ready("shift");
    ready("values at the knots of the spline");
  }

 private:
  static std::pair<std::size_t, float> place(float x) {
    float const at = std::clamp((x + 1) * 4, 0.0F, 7.999F);
    return {static_cast<std::size_t>(at), at - std::floor(at)};
  }
};

}  // namespace toy
