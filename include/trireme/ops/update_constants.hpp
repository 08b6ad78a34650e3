#pragma once

#include <cmath>

#include "trireme/core/exact.hpp"

namespace trireme::ops::detail {

/// The constants of one step of AdamW and of SGD, in the type in which it is computed: the same for every element, so
/// that they are formed once, on the host.
template <class Real>
struct adamw_constants {
  Real beta1, beta2, rest1, rest2, step, correction, epsilon, keep;

  template <class Numbers>
  [[nodiscard]] static adamw_constants of(Numbers const& numbers) {
    return {static_cast<Real>(numbers.beta1),
            static_cast<Real>(numbers.beta2),
            static_cast<Real>(1 - numbers.beta1),
            static_cast<Real>(1 - numbers.beta2),
            static_cast<Real>(-numbers.learning_rate / numbers.correction1),
            static_cast<Real>(1 / std::sqrt(numbers.correction2)),
            static_cast<Real>(numbers.epsilon),
            static_cast<Real>(1 - numbers.learning_rate * numbers.weight_decay)};
  }
};
template <class Real>
struct sgd_constants {
  Real rate, momentum, decay;
  bool moving, nesterov;

  template <class Numbers>
  [[nodiscard]] static sgd_constants of(Numbers const& numbers) {
    return {static_cast<Real>(-numbers.learning_rate), static_cast<Real>(numbers.momentum),
            static_cast<Real>(numbers.weight_decay), !exactly_equal(numbers.momentum, 0), numbers.nesterov};
  }
};

}  // namespace trireme::ops::detail
