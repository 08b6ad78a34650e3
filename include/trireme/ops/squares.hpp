#pragma once

#include <limits>

#include "trireme/core/exact_sum.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// The squares of several tensors, added to an exact sum. A space whose work is queued specialises it, so that the host
/// waits once for all of them, in finish(), instead of once for each (ops/cuda.hpp).
template <class Space>
class squares_total {
 public:
  explicit squares_total(exact_sum& into) noexcept : into_(into) {}

  /// Adds the sum of squares of each block of 1024 elements.
  template <class T>
  void add(tensor_view<T, Space> x) {
    on<Space>::sum_of_squares(x, into_);
  }
  /// Adds a number that is not finite if an element is not finite.
  template <class T>
  void expect_finite(tensor_view<T, Space> x) {
    if (!on<Space>::finite(x)) into_.add(std::numeric_limits<double>::infinity());
  }
  /// Afterwards the sum has them all.
  void finish() noexcept {}

 private:
  exact_sum& into_;
};

/// Whether one of several tensors has an element that is not finite. A space whose work is queued specialises it, so
/// that the host does not wait for each tensor.
template <class Space>
class nonfinite_flag {
 public:
  void clear() noexcept { found_ = false; }
  template <class T>
  void look_at(tensor_view<T, Space> x) {
    found_ = found_ || !on<Space>::finite(x);
  }
  /// Call it before the host waits for the queued work. Afterwards found() is known.
  void fetch() noexcept {}
  [[nodiscard]] bool found() const noexcept { return found_; }

 private:
  bool found_ = false;
};

}  // namespace trireme::ops
