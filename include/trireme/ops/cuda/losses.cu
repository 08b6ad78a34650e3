// The bodies of the functions of ops/cuda/losses_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda.
#include "trireme/ops/cuda/losses.cuh"

#include <cstdint>
#include <limits>

#include "trireme/ops/cuda/losses_launch.hpp"
#include "trireme/ops/cuda/types.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

namespace {

/// The threads of a block that has a row of n numbers: so many that they keep all of it in registers, if 1024 can.
template <class T>
int threads_for_row(std::int64_t n) {
  int threads = 128;
  while (threads < device::row_threads && threads * device::kept_packs * std::int64_t{device::pack_width<T>} < n)
    threads *= 2;
  return threads;
}
template <class Real>
device::loss_of_rows<Real> how_of(cross_entropy_call const& call) {
  return {static_cast<Real>(call.weight), call.gradient, call.terms.ignored, static_cast<Real>(call.terms.smoothing),
          call.terms.z};
}
device::loss_marks marks_of(cross_entropy_call const& call) {
  return {call.losses, &call.out->left_out, &call.out->first_refused};
}
int sum_losses(handle stream, double const* losses, std::int64_t n, loss_numbers* out) {
  return device::run("sum_in_order", &device::sum_in_order<double>, 1, n > 2048 ? device::row_threads : 256, stream,
                     losses, n, &out->sum);
}
/// Rows are counted in 32 bits within a row, and as blocks.
bool fits(std::int64_t rows, std::int64_t row_length) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  return rows <= most && row_length <= most;
}

}  // namespace

int cross_entropy(handle stream, cross_entropy_call const& call) {
  if (call.rows == 0) return device::launch_succeeded;
  if (!fits(call.rows, call.row_length)) return device::launch_refused;
  auto const code = device::for_floats(call.of, [&]<class T>(T) {
    auto const classes = static_cast<int>(call.classes);
    auto const threads = threads_for_row<T>(classes);
    auto const launch = [&](auto kernel, std::int64_t blocks, std::int64_t bytes) {
      return device::run_sized("cross_entropy", kernel, blocks, threads, bytes, stream, static_cast<T*>(call.logits),
                               call.rows, call.row_length, classes, call.targets, how_of<device::real_for<T>>(call),
                               marks_of(call));
    };
    auto const packs = (classes / device::pack_width<T> + threads - 1) / threads;
    auto const kept = packs < device::kept_packs ? packs : device::kept_packs;
    auto const bytes = static_cast<std::int64_t>(sizeof(device::logit_words)) * threads * kept;
    auto const staged = &device::cross_entropy_rows<T, true>;
    if (bytes > device::most_shared_bytes() - 1024 || !device::products_of_tiles(staged))  // which copies came with
      return launch(&device::cross_entropy_rows<T, false>, call.rows, 0);
    auto const wanted = device::most_blocks() * 128 / threads;  // as many as fit on the device at once
    auto const most = wanted < 1 ? std::int64_t{1} : wanted;
    return launch(staged, call.rows < most ? call.rows : most, bytes);
  });
  return code != device::launch_succeeded ? code : sum_losses(stream, call.losses, call.rows, call.out);
}
int row_peaks(handle stream, dtype of, void const* logits, std::int64_t rows, std::int64_t classes, void* peaks) {
  if (rows == 0) return device::launch_succeeded;
  if (!fits(rows, classes)) return device::launch_refused;
  return device::for_floats(of, [&]<class T>(T) {
    return device::run("row_peaks", &device::row_peaks<T>, rows, threads_for_row<T>(classes), stream,
                       static_cast<T const*>(logits), static_cast<int>(classes),
                       static_cast<device::real_for<T>*>(peaks));
  });
}
int row_masses(handle stream, dtype of, void const* logits, std::int64_t rows, std::int64_t classes,
               std::int32_t const* targets, table_range part, double smoothing, void const* peaks, void* masses,
               void* chosen) {
  if (rows == 0) return device::launch_succeeded;
  if (!fits(rows, classes)) return device::launch_refused;
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::real_for<T>;
    return device::run("row_masses", &device::row_masses<T>, rows, threads_for_row<T>(classes), stream,
                       static_cast<T const*>(logits),
                       device::class_range{part.first, part.whole, static_cast<int>(classes)}, targets, smoothing,
                       static_cast<real const*>(peaks), static_cast<real*>(masses), static_cast<real*>(chosen));
  });
}
int cross_entropy_part(handle stream, cross_entropy_call const& call, void const* peaks, void const* masses,
                       void const* chosen) {
  if (call.rows == 0) return device::launch_succeeded;
  if (!fits(call.rows, call.row_length)) return device::launch_refused;
  auto const code = device::for_floats(call.of, [&]<class T>(T) {
    using real = device::real_for<T>;
    return device::run("cross_entropy_part", &device::cross_entropy_part_rows<T>, call.rows,
                       threads_for_row<T>(call.classes), stream, static_cast<T*>(call.logits),
                       device::class_range{call.part.first, call.part.whole, static_cast<int>(call.classes)},
                       call.targets, how_of<real>(call), static_cast<real const*>(peaks),
                       static_cast<real const*>(masses), static_cast<real const*>(chosen), marks_of(call));
  });
  return code != device::launch_succeeded ? code : sum_losses(stream, call.losses, call.rows, call.out);
}

std::int64_t parts_of_comparison(std::int64_t n) {
  return (n + device::compared_elements - 1) / device::compared_elements;
}
int squared_error(handle stream, dtype of, void* dy, void const* y, dtype target_type, void const* targets,
                  std::int64_t n, double slope, double* parts, loss_numbers* out) {
  if (n == 0) return device::launch_succeeded;
  auto const blocks = parts_of_comparison(n);
  auto const launch = [&]<class T, class Target>(T, Target) {
    return device::run("squared_error", &device::squared_errors<T, Target>, blocks, device::block_threads, stream,
                       static_cast<T*>(dy), static_cast<T const*>(y), static_cast<Target const*>(targets), n,
                       static_cast<device::real_for<T>>(slope), parts);
  };
  auto const code = device::for_floats(of, [&]<class T>(T value) {
    if (target_type == dtype::f32) return launch(value, float{});
    if constexpr (std::is_same_v<T, double>)
      if (target_type == dtype::f64) return launch(value, double{});
    return device::launch_refused;
  });
  return code != device::launch_succeeded ? code : sum_losses(stream, parts, blocks, out);
}
int binary_cross_entropy(handle stream, dtype of, void* dy, void const* y, dtype target_type, void const* targets,
                         std::int64_t n, double weight, double* parts, loss_numbers* out) {
  if (n == 0) return device::launch_succeeded;
  auto const blocks = parts_of_comparison(n);
  auto const launch = [&]<class T, class Target>(T, Target) {
    return device::run("binary_cross_entropy", &device::binary_cross_entropies<T, Target>, blocks,
                       device::block_threads, stream, static_cast<T*>(dy), static_cast<T const*>(y),
                       static_cast<Target const*>(targets), n, weight, parts, &out->first_refused);
  };
  auto const code = device::for_floats(of, [&]<class T>(T value) {
    if (target_type == dtype::f32) return launch(value, float{});
    if (target_type == dtype::f64) return launch(value, double{});
    return device::launch_refused;
  });
  return code != device::launch_succeeded ? code : sum_losses(stream, parts, blocks, out);
}

}  // namespace trireme::ops::cuda_kernels
