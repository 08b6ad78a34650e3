#include "network_kernels.hpp"

#include "../../support/simt/threads.hpp"

#include <cstdint>

#include "trireme/ops/cuda/packs.cuh"

namespace network {

namespace device = trireme::ops::detail::device;

namespace {

__device__ __forceinline__ void forward_sample(batch const& all, std::int64_t s) {
  float out = 0;
  for (int h = 0; h < hidden; ++h) {
    float const a = all.values.w1[h] * all.x[s] + all.values.b1[h];
    float const bent = a > 0 ? a : 0.1F * a;
    all.bent[s * hidden + h] = bent;
    out += all.values.w2[h] * bent;
  }
  all.errors[s] = out + *all.values.b2 - all.y[s];
}
/// The gradients of one hidden number; of b2 for the number `hidden`.
__device__ __forceinline__ void backward_row(batch const& all, std::int64_t h) {
  float of_w1 = 0, of_b1 = 0, of_w2 = 0, of_b2 = 0;
  for (int s = 0; s < all.n; ++s) {
    float const slope = 2 * all.errors[s] / static_cast<float>(all.n);
    of_b2 += slope;
    if (h == hidden) continue;
    float const bent = all.bent[s * hidden + h];
    float const before = slope * all.values.w2[h] * (bent > 0 ? 1.0F : 0.1F);
    of_w2 += slope * bent;
    of_b1 += before;
    of_w1 += before * all.x[s];
  }
  if (h == hidden) {
    *all.gradients.b2 = of_b2;
  } else {
    all.gradients.w1[h] = of_w1;
    all.gradients.b1[h] = of_b1;
    all.gradients.w2[h] = of_w2;
  }
}

__global__ void __launch_bounds__(device::block_threads) forward_kernel(batch const all) {
  for (auto s = device::first_task(); s < all.n; s += device::all_tasks()) forward_sample(all, s);
}
__global__ void __launch_bounds__(device::block_threads) backward_kernel(batch const all) {
  for (auto h = device::first_task(); h <= hidden; h += device::all_tasks()) backward_row(all, h);
}

}  // namespace

void forward(batch const& all) {
  for (int s = 0; s < all.n; ++s) forward_sample(all, s);
}
int forward_on(void* stream, batch const& all) {
  return device::run("network_forward", &forward_kernel, 1, 32, stream, all);
}
void backward(batch const& all) {
  for (int h = 0; h <= hidden; ++h) backward_row(all, h);
}
int backward_on(void* stream, batch const& all) {
  return device::run("network_backward", &backward_kernel, 2, 32, stream, all);
}

}  // namespace network
