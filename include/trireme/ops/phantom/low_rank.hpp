#pragma once

#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/low_rank_shapes.hpp"
#include "trireme/ops/phantom/checks.hpp"

namespace trireme::ops {

/// Kernels on matrices of few columns, without their numbers.
template <class Space>
struct phantom_low_rank {
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;

  template <class T>
  static void small_product(tensor_view<T, Space> y, input<T> a, transposed of_a, input<T> b, transposed of_b) {
    note_kernel<Space>("small_product", y, a, b);
    static_cast<void>(detail::sizes_of_product(y.extents(), a.extents(), of_a, b.extents(), of_b));
  }
  template <class T>
  static void product_of_sum(tensor_view<T, Space> y, tensor_view<T, Space> x, input<T> z, double, input<T> b) {
    note_kernel<Space>("product_of_sum", y, x, z, b);
    static_cast<void>(detail::sizes_of_product_of_sum(y.extents(), x.extents(), z.extents(), b.extents()));
  }
  template <class T>
  static void rest_and_product(tensor_view<T, Space> rest, tensor_view<T, Space> x, input<T> p, input<T> own,
                               input<T> all, double) {
    note_kernel<Space>("rest_and_product", rest, x, p, own, all);
    static_cast<void>(detail::sizes_of_rest(rest.extents(), x.extents(), p.extents(), own.extents(), all.extents()));
  }
  template <class T>
  static void orthonormalise(tensor_view<T, Space> x) {
    note_kernel<Space>("orthonormalise", x);
    detail::expect_columns(x.extents());
  }
};

}  // namespace trireme::ops
