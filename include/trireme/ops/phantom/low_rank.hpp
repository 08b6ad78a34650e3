#pragma once

#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/low_rank_shapes.hpp"
#include "trireme/ops/phantom/checks.hpp"

namespace trireme::ops {

/// Kernels on matrices of few columns, without their numbers.
struct phantom_low_rank {
  template <class T>
  static void small_product(tensor_view<T, phantom> y, phantom_checks::input<T> a, transposed of_a,
                            phantom_checks::input<T> b, transposed of_b) {
    static_cast<void>(detail::sizes_of_product(y.extents(), a.extents(), of_a, b.extents(), of_b));
  }
  template <class T>
  static void orthonormalise(tensor_view<T, phantom> x) {
    detail::expect_columns(x.extents());
  }
};

}  // namespace trireme::ops
