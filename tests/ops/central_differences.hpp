#pragma once

#include <cmath>
#include <span>

/// The distance of a gradient from central differences of `loss()` at `x`, relative to their norms.
///
/// `loss` is called with one element of x changed at a time, and must be a function of these elements alone. In double,
/// with this step, a correct gradient gives less than 1e-8 and a wrong one more than 1e-3.
template <class Loss>
double gradient_error(std::span<double> x, std::span<double const> gradient, Loss&& loss, double step = 1e-5) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    double const middle = x[i];
    x[i] = middle + step;
    double const above = loss();
    x[i] = middle - step;
    double const below = loss();
    x[i] = middle;
    double const slope = (above - below) / (2 * step);
    difference += (slope - gradient[i]) * (slope - gradient[i]);
    norm += slope * slope + gradient[i] * gradient[i];
  }
  return norm == 0 ? 0 : std::sqrt(difference / norm);
}
