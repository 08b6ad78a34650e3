// The bodies of the functions of ops/cuda/low_rank_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda.
#include "trireme/ops/cuda/low_rank_launch.hpp"

#include <cstdint>
#include <type_traits>

#include "trireme/ops/cuda/low_rank.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

int small_product(void* stream, dtype of, void* y, void const* a, bool a_turned, void const* b, bool b_turned,
                  std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m == 0 || n == 0) return device::launch_succeeded;
  auto const with_type = [&]<class T>(T) {
    device::small_product_call<T> const call{
        static_cast<T*>(y), static_cast<T const*>(a), static_cast<T const*>(b), m, n, k, a_turned, b_turned};
    auto const with_columns = [&](auto columns, auto depth) {
      constexpr int across = decltype(columns)::value;
      constexpr int rows = device::block_threads / across;
      auto const tiles = (m + rows - 1) / rows * ((n + across - 1) / across);
      return device::run("small_product", &device::small_product<T, across, decltype(depth)::value>,
                         device::blocks_for(tiles * device::block_threads), device::block_threads, stream, call);
    };
    // A few blocks with long sums: they wait for memory once for each piece of them.
    using long_sums = std::integral_constant<int, static_cast<int>(512 / sizeof(T))>;
    if (n <= 4) return with_columns(std::integral_constant<int, 4>{}, long_sums{});
    if (n <= 16) return with_columns(std::integral_constant<int, 16>{}, long_sums{});
    if (k <= 16) return with_columns(std::integral_constant<int, 64>{}, std::integral_constant<int, 8>{});
    return with_columns(std::integral_constant<int, 64>{}, std::integral_constant<int, 32>{});
  };
  if (of == dtype::f32) return with_type(float{});
  if (of == dtype::f64) return with_type(double{});
  return device::launch_refused;
}

int orthonormalise(void* stream, dtype of, void* x, double* column, std::int64_t n, std::int64_t r) {
  if (r == 0) return device::launch_succeeded;
  auto const with_type = [&]<class T>(T) {
    return device::run("orthonormalise", &device::orthonormalise<T>, 1, device::orthonormal_threads, stream,
                       static_cast<T*>(x), column, n, r);
  };
  if (of == dtype::f32) return with_type(float{});
  if (of == dtype::f64) return with_type(double{});
  return device::launch_refused;
}

}  // namespace trireme::ops::cuda_kernels
