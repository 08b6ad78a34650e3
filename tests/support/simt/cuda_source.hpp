#pragma once

#include "threads.hpp"

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <utility>

// What a source in CUDA's language uses that nvcc brings by itself, in terms of the simulator. Two things have no such
// form in C++; trireme_simulate_source() in cmake/simulated_cuda.cmake rewrites them:
//   kernel<<<blocks, threads, 0, stream>>>(x)   simt::launch_on("kernel", kernel, blocks, threads, 0, stream)(x)
//   __shared__ T name[n];                       auto& name = simt::shared<T[n], __COUNTER__>();
// Only what the sources need is here: one dimension, no warp operations, no atomics.

#define threadIdx (::simt::here().thread())
#define blockIdx (::simt::here().block())
#define blockDim (::simt::here().block_extent())
#define gridDim (::simt::here().grid())
#define __syncthreads() ::simt::here().barrier({"__syncthreads", __FILE__, __LINE__})

namespace simt {

/// Queues the kernel on the stream, as a launch on a GPU does, with the arguments as they are now.
template <class... Parameters>
[[nodiscard]] auto launch_on(char const* name, void (*kernel)(Parameters...), int blocks, int threads,
                             std::size_t /*shared_bytes*/, cudaStream_t stream) {
  return [=](Parameters... arguments) {
    auto launch = [=] {
      here().launch(name, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), [&] { kernel(arguments...); });
    };
    if (stream != nullptr && queue_on != nullptr)
      queue_on(stream, std::move(launch));
    else
      launch();
  };
}

}  // namespace simt
