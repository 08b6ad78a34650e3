#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/core/cuda_space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/elements.hpp"
#include "trireme/ops/cuda/low_rank_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/low_rank_shapes.hpp"

namespace trireme::ops {

/// Kernels on matrices of few columns in CUDA memory, of float or double.
///
/// Shapes   matrices are row-major views of two extents.
/// Threads  thread-safe on different outputs.
/// Errors   assertion_error (light) if sizes do not fit; device_error with CUDA's message if work cannot be queued.
struct cuda_low_rank {
  /// y = a b, with a or b transposed if requested; one of the three extents of the product is small.
  ///
  /// Shapes   y (M,N); a (M,K), or (K,M) transposed; b (K,N), or (N,K) transposed.
  /// Numerics each element is summed in the order of K, in T: the host's bits.
  template <class T>
  requires std::is_floating_point_v<T>
  static void small_product(tensor_view<T, cuda> y, std::type_identity_t<tensor_view<T const, cuda>> a, transposed of_a,
                            std::type_identity_t<tensor_view<T const, cuda>> b, transposed of_b) {
    auto const [m, n, k] = detail::sizes_of_product(y.extents(), a.extents(), of_a, b.extents(), of_b);
    detail::expect_cuda("small_product",
                        cuda_kernels::small_product(cuda::stream(), dtype_of<T>, raw(y), raw(a),
                                                    of_a == transposed::yes, raw(b), of_b == transposed::yes, m, n, k));
  }

  /// x += weight z, then y = x b.
  ///
  /// Shapes   y (M,N); x and z (M,K); b (K,N).
  template <class T>
  requires std::is_floating_point_v<T>
  static void product_of_sum(tensor_view<T, cuda> y, tensor_view<T, cuda> x,
                             std::type_identity_t<tensor_view<T const, cuda>> z, double weight,
                             std::type_identity_t<tensor_view<T const, cuda>> b) {
    static_cast<void>(detail::sizes_of_product_of_sum(y.extents(), x.extents(), z.extents(), b.extents()));
    cuda_elements::accumulate(x, z, weight);
    small_product(y, x, transposed::no, b, transposed::no);
  }
  /// rest = factor (x - p own^T), then x = p all^T.
  ///
  /// Shapes   rest and x (M,N); p (M,R); own and all (N,R).
  template <class T>
  requires std::is_floating_point_v<T>
  static void rest_and_product(tensor_view<T, cuda> rest, tensor_view<T, cuda> x,
                               std::type_identity_t<tensor_view<T const, cuda>> p,
                               std::type_identity_t<tensor_view<T const, cuda>> own,
                               std::type_identity_t<tensor_view<T const, cuda>> all, double factor) {
    static_cast<void>(detail::sizes_of_rest(rest.extents(), x.extents(), p.extents(), own.extents(), all.extents()));
    small_product(rest, p, transposed::no, own, transposed::yes);
    cuda_elements::scale(rest, -factor);
    cuda_elements::accumulate(rest, x, factor);
    small_product(x, p, transposed::no, all, transposed::yes);
  }

  /// Makes the columns of x orthonormal, starting with the first (Gram-Schmidt, each column made orthogonal twice). A
  /// column that is a linear combination of earlier ones is replaced by a coordinate vector made orthogonal to them.
  ///
  /// Shapes   x (n, r), r <= n.
  /// Numerics inner products in double, in a fixed tree: the same bits on every device, but the host's, which are
  ///          summed in the order of n, to rounding errors only.
  /// Bytes    n doubles of scratch memory of this thread's device.
  template <class T>
  requires std::is_floating_point_v<T>
  static void orthonormalise(tensor_view<T, cuda> x) {
    detail::expect_columns(x.extents());
    auto const n = x.extent(0);
    auto* const column = detail::cuda_scratch("orthonormalise", static_cast<std::size_t>(n) * sizeof(double));
    detail::expect_cuda("orthonormalise", cuda_kernels::orthonormalise(cuda::stream(), dtype_of<T>, raw(x),
                                                                       static_cast<double*>(column), n, x.extent(1)));
  }
};

}  // namespace trireme::ops
