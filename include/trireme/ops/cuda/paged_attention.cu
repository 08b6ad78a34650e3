// The bodies of the functions of ops/cuda/paged_attention_launch.hpp, a part of trireme::cuda.
#include "trireme/ops/cuda/paged_attention_launch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "trireme/ops/cuda/paged_attention.cuh"
#include "trireme/ops/cuda/types.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

int keep_pages(void* stream, dtype of, void* kept, void const* qkv, paged_work const& work) {
  auto const tasks = work.rows * work.key_heads * work.width;
  if (tasks == 0) return device::launch_succeeded;
  auto const blocks = std::min((tasks + device::block_threads - 1) / device::block_threads, device::most_blocks());
  return device::for_floats(of, [&]<class T>(T) {
    return device::run("keep_pages", &device::keep_pages<T>, blocks, device::block_threads, stream,
                       static_cast<T*>(kept), static_cast<T const*>(qkv), work);
  });
}
int attend_pages(void* stream, dtype of, void* y, void const* kept, void const* qkv, paged_work const& work) {
  if (work.rows * work.heads * work.width == 0) return device::launch_succeeded;
  if (work.width > widest_head) return device::launch_refused;
  return device::for_floats(of, [&]<class T>(T) {
    auto const scale = static_cast<device::sum_type<T>>(1 / std::sqrt(static_cast<double>(work.width)));
    return device::run("attend_pages", &device::attend_pages<T>, work.rows * work.heads, device::paged_threads, stream,
                       static_cast<T*>(y), static_cast<T const*>(kept), static_cast<T const*>(qkv), work, scale);
  });
}

}  // namespace trireme::ops::cuda_kernels
