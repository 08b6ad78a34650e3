#pragma once

// CUDA tensors in data_parallel and broadcast: include this in addition to interop/torch.hpp, and link trireme::torch,
// trireme::cuda (for comm::nccl trireme::nccl) and LibTorch's own torch_cuda and c10_cuda. See docs/torch.md.

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <string_view>

#include "trireme/comm/cuda.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/interop/torch_data_parallel.hpp"
#include "trireme/interop/torch_space.hpp"

namespace trireme::interop {

/// CUDA memory whose kernels are torch's own: what data_parallel exchanges gradients in.
struct torch_cuda : cuda {
  static constexpr std::string_view name = "cuda, with torch's kernels";
};

namespace detail {

template <>
struct torch_memory<cuda> {
  using type = torch_cuda;
};

/// Torch's tensors on the calling thread's device, and the order between torch's stream and cuda::stream().
template <>
struct torch_space<cuda> {
  static constexpr at::DeviceType device = at::kCUDA;
  [[nodiscard]] static at::Device here() {
    int current = 0;
    trireme::detail::expect_cuda(::cudaGetDevice(&current), "trireme::interop: asking for the device");
    return {device, static_cast<at::DeviceIndex>(current)};
  }

  /// While it exists, torch's operations in this thread are queued on cuda::stream().
  class on_stream {
   public:
    on_stream() : before_(c10::cuda::getCurrentCUDAStream()) {
      c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(cuda::stream(), before_.device_index()));
    }
    on_stream(on_stream const&) = delete;
    on_stream& operator=(on_stream const&) = delete;
    ~on_stream() { c10::cuda::setCurrentCUDAStream(before_); }
    [[nodiscard]] ::cudaStream_t before() const { return before_.stream(); }

   private:
    c10::cuda::CUDAStream before_;
  };

  /// The same, and the two streams wait for each other: work queued on cuda::stream() while this exists begins after
  /// the work queued before on torch's current stream; work queued there afterwards begins after all of it.
  class in_order {
   public:
    in_order() { follow(cuda::stream(), inner_.before()); }
    in_order(in_order const&) = delete;
    in_order& operator=(in_order const&) = delete;
    ~in_order() {
      try {
        follow(inner_.before(), cuda::stream());
      } catch (comm_error const&) {  // the device has failed; the next call to it reports that
      }
    }

   private:
    static void follow(::cudaStream_t later, ::cudaStream_t earlier) {
      event const now;
      trireme::detail::expect_cuda(::cudaEventRecord(now.it, earlier), "trireme::interop: recording an event");
      trireme::detail::expect_cuda(::cudaStreamWaitEvent(later, now.it, 0), "trireme::interop: ordering streams");
    }
    struct event {
      event() {
        trireme::detail::expect_cuda(::cudaEventCreateWithFlags(&it, cudaEventDisableTiming),
                                     "trireme::interop: making an event");
      }
      event(event const&) = delete;
      event& operator=(event const&) = delete;
      ~event() { (void)::cudaEventDestroy(it); }
      ::cudaEvent_t it = nullptr;
    };
    on_stream inner_;
  };
};

template <>
struct torch_space<torch_cuda> : torch_space<cuda> {};

}  // namespace detail

}  // namespace trireme::interop

namespace trireme::ops {

/// The kernels of an exchange of gradients in CUDA memory of LibTorch. There are none for the layers of nn.
template <>
struct on<interop::torch_cuda> : interop::detail::torch_kernels<interop::torch_cuda> {};

}  // namespace trireme::ops
