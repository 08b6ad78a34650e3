// The bodies of the functions of ops/cuda/heads_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda.
#include "trireme/ops/cuda/heads.cuh"

#include <cstdint>
#include <limits>

#include "trireme/ops/cuda/heads_launch.hpp"
#include "trireme/ops/cuda/types.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

namespace {

device::head_places places_of(head_layout const& how) {
  return {static_cast<int>(how.heads), static_cast<int>(how.key_heads), static_cast<int>(how.width),
          static_cast<int>(how.heads / how.key_heads)};
}
bool fits_places(head_layout const& how) {
  return 3 * how.heads * how.width <= std::numeric_limits<std::int32_t>::max();
}
template <int Width, class T>
bool aligned(T const* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(device::pack<T, Width>) == 0;
}
std::int64_t blocks_of_rows(std::int64_t rows) {
  auto const most = device::most_blocks();
  return rows < most ? rows : most;
}
/// Whole warps for so many tasks a row, and no more than 256 threads.
int threads_of_heads(std::int64_t tasks) {
  int threads = device::warp_width;
  while (threads < device::head_threads && threads < tasks) threads += device::warp_width;
  return threads;
}
/// The lanes that share a head of so many packs: a power of two.
int lanes_of_head(std::int64_t packs) {
  int lanes = 1;
  while (lanes < device::warp_width && lanes < packs) lanes *= 2;
  return lanes;
}

/// arrange_heads if Forward, else arrange_heads_backward.
template <bool Forward>
int arrange(handle stream, dtype of, void* to, void const* from, void const* table, head_layout const& how,
            std::int64_t rows) {
  if (rows == 0 || how.width == 0) return device::launch_succeeded;
  if (!fits_places(how)) return device::launch_refused;
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::real_for<T>;
    auto* const y = static_cast<T*>(to);
    auto const* const x = static_cast<T const*>(from);
    auto const* const angles = static_cast<real const*>(table);
    auto const launch = [&]<int Width>(std::integral_constant<int, Width>) {
      auto const heads = Forward ? 3 * how.heads : how.heads + 2 * how.key_heads;
      auto const threads = threads_of_heads(heads * ((how.width + 1) / 2) / Width);
      auto const name = Forward ? "arrange_heads" : "arrange_heads_backward";
      auto const kernel = Forward ? &device::arrange_heads<T, Width> : &device::arrange_heads_backward<T, Width>;
      return device::run(name, kernel, blocks_of_rows(rows), threads, stream, y, x, angles, places_of(how), how.context,
                         rows);
    };
    constexpr int wide = device::pack_width<T>;
    if (how.width % (2 * wide) == 0 && aligned<wide>(y) && aligned<wide>(x) && aligned<wide>(angles))
      return launch(std::integral_constant<int, wide>{});
    return launch(std::integral_constant<int, 1>{});
  });
}
/// Calls f(T{}, width) with a width of packs of heads that begin at these addresses.
template <class F>
int for_norms(head_norms const& norms, void const* y, void const* dy, F&& f) {
  return device::for_floats(norms.of, [&]<class T>(T type) {
    constexpr int wide = device::pack_width<T>;
    bool packs = norms.how.width % wide == 0;
    for (auto const* each : {y, dy, norms.x, norms.query_gain, norms.key_gain})
      packs = packs && aligned<wide>(static_cast<T const*>(each));
    return packs ? f(type, std::integral_constant<int, wide>{}) : f(type, std::integral_constant<int, 1>{});
  });
}
/// The blocks of head_gains, and those of a backward pass that forms the sums itself.
std::int64_t blocks_of_gains(std::int64_t rows) { return (rows + device::gain_rows - 1) / device::gain_rows; }
std::int64_t blocks_with_gains(std::int64_t rows) { return rows < device::gain_blocks ? rows : device::gain_blocks; }

}  // namespace

int arrange_heads(handle stream, dtype of, void* qkv, void const* x, void const* table, head_layout const& how,
                  std::int64_t rows) {
  return arrange<true>(stream, of, qkv, x, table, how, rows);
}
int arrange_heads_backward(handle stream, dtype of, void* dx, void const* dqkv, void const* table,
                           head_layout const& how, std::int64_t rows) {
  return arrange<false>(stream, of, dx, dqkv, table, how, rows);
}

int normalise_heads(handle stream, head_norms const& norms, void* y, double epsilon) {
  if (norms.rows == 0) return device::launch_succeeded;
  if (!fits_places(norms.how)) return device::launch_refused;
  return for_norms(norms, y, nullptr, [&]<class T, int Width>(T, std::integral_constant<int, Width>) {
    using real = device::real_for<T>;
    return device::run("normalise_heads", &device::normalise_heads<T, Width>, blocks_of_rows(norms.rows),
                       device::head_threads, stream, static_cast<T*>(y), static_cast<real*>(norms.rstd),
                       static_cast<T const*>(norms.x), static_cast<T const*>(norms.query_gain),
                       static_cast<T const*>(norms.key_gain), places_of(norms.how),
                       lanes_of_head(norms.how.width / Width), norms.rows, static_cast<real>(epsilon));
  });
}
std::int64_t bytes_of_head_gains(head_norms const& norms) {
  auto const apart = blocks_of_gains(norms.rows), together = blocks_with_gains(norms.rows);
  return (apart < together ? together : apart) * 2 * norms.how.width * (norms.of == dtype::f64 ? 8 : 4);
}
int normalise_heads_backward(handle stream, head_norms const& norms, void* dx, void const* dy, void* dquery_gain,
                             void* dkey_gain, void* scratch) {
  if (norms.rows == 0) return device::launch_succeeded;
  if (!fits_places(norms.how)) return device::launch_refused;
  auto const places = places_of(norms.how);
  return for_norms(norms, dx, dy, [&]<class T, int Width>(T, std::integral_constant<int, Width>) {
    using real = device::real_for<T>;
    auto const* const slopes = static_cast<T const*>(dy);
    auto const* const x = static_cast<T const*>(norms.x);
    auto const* const rstd = static_cast<real const*>(norms.rstd);
    auto* const parts = static_cast<real*>(scratch);
    auto const lanes = lanes_of_head(norms.how.width / Width);
    auto const add = [&](std::int64_t blocks) {
      return device::run("add_head_gains", &device::add_head_gains<real>, (2 * norms.how.width + 15) / 16,
                         device::head_threads, stream, static_cast<real*>(dquery_gain), static_cast<real*>(dkey_gain),
                         static_cast<real const*>(parts), places.width, blocks);
    };
    auto const backward = [&](auto kernel, std::int64_t blocks) {
      return device::run("normalise_heads_backward", kernel, blocks, device::head_threads, stream, static_cast<T*>(dx),
                         slopes, x, rstd, static_cast<T const*>(norms.query_gain),
                         static_cast<T const*>(norms.key_gain), places, lanes, norms.rows, parts);
    };
    if (norms.how.width <= lanes * Width) {
      auto const blocks = blocks_with_gains(norms.rows);
      auto const code = backward(&device::normalise_heads_backward<T, Width, true>, blocks);
      return code != device::launch_succeeded ? code : add(blocks);
    }
    auto const blocks = blocks_of_gains(norms.rows);
    auto code = device::run("head_gains", &device::head_gains<T>, blocks, device::head_threads, stream, parts, slopes,
                            x, rstd, places, norms.rows);
    if (code == device::launch_succeeded) code = add(blocks);
    if (code != device::launch_succeeded) return code;
    return backward(&device::normalise_heads_backward<T, Width, false>, blocks_of_rows(norms.rows));
  });
}

int visible_keys(handle stream, std::int32_t* seen, std::int32_t const* tokens, std::int64_t samples,
                 std::int64_t context, token_mask const& how, unsigned long long* first_refused) {
  if (samples == 0 || context == 0) return device::launch_succeeded;
  return device::run("visible_keys", &device::visible_keys<std::int32_t>, samples, device::key_threads, stream, seen,
                     tokens, context, how, first_refused);
}

}  // namespace trireme::ops::cuda_kernels
