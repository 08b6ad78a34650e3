// The bodies of the functions of ops/cuda/batch_norm_launch.hpp, a part of trireme::cuda.
#include "trireme/ops/cuda/batch_norm_launch.hpp"

#include <cstdint>

#include "trireme/ops/cuda/batch_norm.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

std::int64_t column_sums_scratch(std::int64_t rows, std::int64_t channels) noexcept {
  // The most chunks are those of the narrowest block: packs of one column.
  auto const all = device::column_blocks::of(rows, channels, device::most_column_chunks);
  return 2 * channels * all.chunks;
}
int column_sums(void* stream, dtype of, void* sum, void const* x, void const* mean, std::int64_t rows,
                std::int64_t channels, double* scratch) {
  if (channels == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    auto* const to = static_cast<real*>(sum);
    auto const* const from = static_cast<T const*>(x);
    auto const* const center = static_cast<real const*>(mean);
    return device::with_pack_width<device::sum_width<T>>(
        channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          if (center == nullptr)
            return device::launch_column_sums<Width>("column_sums", device::summing_columns<T, Width>{to, from}, rows,
                                                     channels, scratch, stream);
          return device::launch_column_sums<Width>("column_squares",
                                                   device::summing_squares<T, Width>{to, from, center}, rows, channels,
                                                   scratch, stream);
        },
        from);
  });
}
int column_gradients(void* stream, dtype of, void* of_dy, void* of_both, void const* dy, void const* x,
                     void const* mean, void const* rstd, std::int64_t rows, std::int64_t channels, double* scratch) {
  if (channels == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    auto const* const d = static_cast<T const*>(dy);
    auto const* const from = static_cast<T const*>(x);
    return device::with_pack_width<device::sum_width<T>>(
        channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          device::summing_gradients<T, Width> const work{static_cast<real*>(of_dy),
                                                         static_cast<real*>(of_both),
                                                         d,
                                                         from,
                                                         static_cast<real const*>(mean),
                                                         static_cast<real const*>(rstd)};
          return device::launch_column_sums<Width>("column_gradients", work, rows, channels, scratch, stream);
        },
        d, from);
  });
}
int inverse_deviation(void* stream, dtype of, void* rstd, void const* variance, std::int64_t n, double epsilon) {
  auto const launch = [&]<class Real>(Real) {
    device::inverting_deviations<Real> const work{static_cast<Real*>(rstd), static_cast<Real const*>(variance),
                                                  static_cast<Real>(epsilon)};
    return device::launch_elements("inverse_deviation", work, {}, n, stream);
  };
  if (of == dtype::f32) return launch(float{});
  if (of == dtype::f64) return launch(double{});
  return device::launch_refused;
}
int normalise_columns(void* stream, dtype of, void* y, void const* x, void const* mean, void const* rstd,
                      void const* gain, void const* bias, std::int64_t rows, std::int64_t channels) {
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    auto* const to = static_cast<T*>(y);
    auto const* const from = static_cast<T const*>(x);
    return device::with_pack_width<device::pack_width<T>>(
        channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          device::normalising<T, Width> const work{to,
                                                   from,
                                                   static_cast<real const*>(mean),
                                                   static_cast<real const*>(rstd),
                                                   static_cast<T const*>(gain),
                                                   static_cast<T const*>(bias)};
          return device::launch_columns<Width>("normalise", work, rows, channels, stream);
        },
        to, from);
  });
}
int normalise_columns_backward(void* stream, dtype of, void* dx, void const* dy, void const* x,
                               column_gradient const& by, std::int64_t n, bool accumulate, std::int64_t rows,
                               std::int64_t channels) {
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    auto* const to = static_cast<T*>(dx);
    auto const* const d = static_cast<T const*>(dy);
    auto const* const from = static_cast<T const*>(x);
    return device::with_pack_width<device::pack_width<T>>(
        channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          device::normalising_backward<T, Width> const work{to,
                                                            d,
                                                            from,
                                                            static_cast<real const*>(by.mean),
                                                            static_cast<real const*>(by.rstd),
                                                            static_cast<T const*>(by.gain),
                                                            static_cast<real const*>(by.of_dy),
                                                            static_cast<real const*>(by.of_both),
                                                            real{1} / static_cast<real>(n),
                                                            accumulate};
          return device::launch_columns<Width>("normalise_backward", work, rows, channels, stream);
        },
        to, d, from);
  });
}

}  // namespace trireme::ops::cuda_kernels
