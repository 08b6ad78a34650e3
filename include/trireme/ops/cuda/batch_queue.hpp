#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#include "trireme/core/cuda_space.hpp"
#include "trireme/ops/batch_queue.hpp"

namespace trireme::ops {

/// Copies batches on a stream of its own, from pinned memory.
///
/// Threads  one owner, whose stream has the kernels.
/// Errors   comm_error with CUDA's error message.
template <>
class batch_queue<cuda> {
 public:
  class event {
   public:
    event() = default;
    event(event&& other) noexcept : it_(std::exchange(other.it_, nullptr)) {}
    event& operator=(event&& other) noexcept {
      std::swap(it_, other.it_);
      return *this;
    }
    ~event() {
      if (it_ != nullptr) (void)::cudaEventDestroy(it_);
    }

   private:
    friend batch_queue;
    void record(::cudaStream_t stream) {
      if (it_ == nullptr) expect(::cudaEventCreateWithFlags(&it_, cudaEventDisableTiming), "making an event");
      expect(::cudaEventRecord(it_, stream), "noting a place in a stream");
    }
    void hold(::cudaStream_t stream) const {
      if (it_ != nullptr) expect(::cudaStreamWaitEvent(stream, it_, 0), "ordering streams");
    }
    ::cudaEvent_t it_ = nullptr;
  };

  batch_queue() = default;
  batch_queue(batch_queue const&) = delete;
  batch_queue& operator=(batch_queue const&) = delete;
  ~batch_queue() {
    if (stream_ == nullptr) return;
    try {
      trireme::detail::poll_cuda([this] { return ::cudaStreamQuery(stream_); }, who);
    } catch (...) {  // every later call throws it again
    }
    (void)::cudaStreamDestroy(stream_);
  }

  void copy(void* to, void const* from, std::size_t bytes) {
    expect(::cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream()), "copying a batch");
  }
  void copied(event& at) { at.record(stream()); }
  static void order(event const& at) { at.hold(cuda::stream()); }
  static void computed(event& at) { at.record(cuda::stream()); }
  void follow(event const& at) { at.hold(stream()); }
  static void finish(event const& at) {
    if (at.it_ != nullptr) trireme::detail::poll_cuda([&] { return ::cudaEventQuery(at.it_); }, who);
  }

 private:
  static constexpr char const* who = "trireme::cuda: waiting for the copy of a batch";
  static void expect(::cudaError_t code, char const* doing) {
    if (code != cudaSuccess) trireme::detail::expect_cuda(code, text("trireme::cuda: ", doing));
  }
  [[nodiscard]] ::cudaStream_t stream() {
    if (stream_ == nullptr)
      expect(::cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream for batches");
    return stream_;
  }

  ::cudaStream_t stream_ = nullptr;
};

}  // namespace trireme::ops
