#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/core/cuda_space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/cuda/whole_tensors_launch.hpp"
#include "trireme/ops/whole_tensors.hpp"

namespace trireme::ops {

/// The update kernels of whole tensors in CUDA memory, of float or double. Nothing waits for the device: norms stay
/// there.
///
/// Numerics muon_momentum, muon_mix and muon_step have the host's bits. Norms and means are summed in double in a fixed
/// tree, the same on every device; the host sums them in the order of the elements, so the other results are the
/// host's to rounding errors.
/// Bytes    scratch memory of this thread's device: 16 bytes for each 4096 elements, and for adafactor of matrices 8
///          for each row and 1/8 for each element.
/// Threads  thread-safe on different tensors.
/// Errors   assertion_error (light) if sizes do not fit; device_error with CUDA's message if work cannot be queued.
template <>
struct whole_tensors_on<cuda> : detail::whole_tensor_checks {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, cuda>>;
  template <class T>
  using output = std::type_identity_t<tensor_view<T, cuda>>;

  /// first and second become the next moments; value -= rate * (|value| / |u|) * u with u = m / (sqrt(v) + epsilon) +
  /// decay * value.
  template <class M>
  requires std::is_floating_point_v<M>
  static void lamb(view<M> value, output<M> first, output<M> second, input<M> gradient, lamb_numbers const& how) {
    check("lamb", value.size(), first, second, gradient);
    auto const n = value.size();
    auto* const scratch = detail::cuda_scratch("lamb", cuda_kernels::whole_tensor_bytes(n));
    detail::expect_cuda("lamb", cuda_kernels::lamb(cuda::stream(), scratch, dtype_of<M>, raw(value), raw(first),
                                                   raw(second), raw(gradient), n, how));
  }

  /// value changes by the gradient over the root of its second moment, which is kept as means of rows and columns.
  ///
  /// Shapes   direction (n): scratch; column_sums (columns): not used; row_means (matrices, rows), column_means
  ///          (matrices, columns), or both empty and second (n); first (n), or empty without momentum.
  template <class M>
  requires std::is_floating_point_v<M>
  static void adafactor(view<M> value, output<M> direction, view<double> /*column_sums*/, output<M> row_means,
                        output<M> column_means, output<M> second, output<M> first, input<M> gradient,
                        adafactor_numbers const& how) {
    check("adafactor", value.size(), direction, gradient);
    auto const matrices = second.empty() && how.rows > 0 ? row_means.size() / how.rows : 0;
    if (second.empty()) {
      check("adafactor", matrices * how.rows * how.columns, value);
      check("adafactor", matrices * how.columns, column_means);
    } else {
      check("adafactor", value.size(), second);
    }
    cuda_kernels::adafactor_call const call{.value = raw(value),
                                            .direction = raw(direction),
                                            .row_means = raw(row_means),
                                            .column_means = raw(column_means),
                                            .second = second.empty() ? nullptr : raw(second),
                                            .first = first.empty() ? nullptr : raw(first),
                                            .gradient = raw(gradient),
                                            .n = value.size(),
                                            .matrices = matrices};
    auto* const scratch = detail::cuda_scratch("adafactor", cuda_kernels::adafactor_bytes(call, how));
    detail::expect_cuda("adafactor", cuda_kernels::adafactor(cuda::stream(), scratch, dtype_of<M>, call, how));
  }

  /// velocity += (1 - momentum) * (scale * gradient - velocity); direction is that, or with `nesterov` the next one.
  template <class M>
  requires std::is_floating_point_v<M>
  static void muon_momentum(view<M> velocity, output<M> direction, input<M> gradient, double momentum, double by,
                            bool nesterov) {
    check("muon_momentum", velocity.size(), direction, gradient);
    detail::expect_cuda("muon_momentum",
                        cuda_kernels::muon_momentum(cuda::stream(), dtype_of<M>, raw(velocity), raw(direction),
                                                    raw(gradient), velocity.size(), momentum, by, nesterov));
  }
  /// x /= |x|, which counts as 1e-7 at least.
  template <class M>
  requires std::is_floating_point_v<M>
  static void muon_normalise(view<M> x) {
    auto* const scratch = detail::cuda_scratch("muon_normalise", cuda_kernels::whole_tensor_bytes(x.size()));
    detail::expect_cuda("muon_normalise",
                        cuda_kernels::muon_normalise(cuda::stream(), scratch, dtype_of<M>, raw(x), x.size()));
  }
  /// y = of_x * x + of_y * y
  template <class M>
  requires std::is_floating_point_v<M>
  static void muon_mix(view<M> y, input<M> x, double of_x, double of_y) {
    check("muon_mix", y.size(), x);
    detail::expect_cuda("muon_mix",
                        cuda_kernels::muon_mix(cuda::stream(), dtype_of<M>, raw(y), raw(x), y.size(), of_x, of_y));
  }
  /// value = keep * value - by * direction
  template <class M>
  requires std::is_floating_point_v<M>
  static void muon_step(view<M> value, input<M> direction, double keep, double by) {
    check("muon_step", value.size(), direction);
    detail::expect_cuda("muon_step", cuda_kernels::muon_step(cuda::stream(), dtype_of<M>, raw(value), raw(direction),
                                                             value.size(), keep, by));
  }
};

}  // namespace trireme::ops
