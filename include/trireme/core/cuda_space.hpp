#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

namespace detail {

/// "invalid argument (cudaErrorInvalidValue)"
[[nodiscard]] inline std::string cuda_sentence(::cudaError_t code) {
  return text(::cudaGetErrorString(code), " (", ::cudaGetErrorName(code), ")");
}

/// Throws comm_error unless `code` is success. `doing` names the caller and its action: "trireme::comm::nccl: making an
/// event".
inline void expect_cuda(::cudaError_t code, std::string_view doing) {
  if (code == cudaSuccess) return;
  (void)::cudaGetLastError();  // clears an error that is not sticky
  throw comm_error(text(doing, " failed: CUDA reports: ", cuda_sentence(code)));
}

/// Calls `done()` until it is true: at once, then after yielding, and where that takes longer than a step does (about a
/// quarter of a second) after sleeps of 0.1 ms. A sleep is longer than it says, and the device idles meanwhile: sleeps
/// within a step of GPT-2 take 3 % of its time.
template <class Done>
void poll_until(Done&& done) {
  for (int round = 0; !done(); ++round) {
    if (round < 64) continue;  // each query takes the driver about half a microsecond
    if (round < 200'000)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// The streams of one thread, one a device.
class cuda_streams {
 public:
  cuda_streams() = default;
  cuda_streams(cuda_streams const&) = delete;
  cuda_streams& operator=(cuda_streams const&) = delete;
  ~cuda_streams() {
    for (auto* const each : of_device_)
      if (each != nullptr) (void)::cudaStreamDestroy(each);
  }
  [[nodiscard]] ::cudaStream_t current() {
    int device = 0;
    expect_cuda(::cudaGetDevice(&device), "trireme::cuda: asking for the device");
    auto const at = static_cast<std::size_t>(device);
    if (at >= of_device_.size()) of_device_.resize(at + 1, nullptr);
    if (of_device_[at] == nullptr)
      expect_cuda(::cudaStreamCreateWithFlags(&of_device_[at], cudaStreamNonBlocking),
                  "trireme::cuda: making a stream");
    return of_device_[at];
  }

 private:
  std::vector<::cudaStream_t> of_device_;
};

/// What a thread looks at while it waits for its stream: a communicator whose collectives the stream waits for throws
/// here if one has failed or is later than its deadline.
class cuda_watches {
 public:
  using watch = std::function<void()>;
  cuda_watches() = default;
  cuda_watches(cuda_watches const&) = delete;
  cuda_watches& operator=(cuda_watches const&) = delete;
  ~cuda_watches() { any() = false; }
  [[nodiscard]] static cuda_watches& of_thread() {
    thread_local cuda_watches all;
    return all;
  }
  /// Whether this thread has any; also when its other objects are gone.
  [[nodiscard]] static bool& any() noexcept {
    thread_local bool here = false;
    return here;
  }
  /// Until the owner lets go of it. A watch that is there already is not added again.
  void add(std::shared_ptr<watch const> const& it) {
    std::erase_if(all_, [](auto const& each) { return each.expired(); });
    for (auto const& each : all_)
      if (!each.owner_before(it) && !it.owner_before(each)) return;
    all_.push_back(it);
    any() = true;
  }
  void look() const {
    for (auto const& each : all_)
      if (auto const kept = each.lock()) (*kept)();
  }

 private:
  std::vector<std::weak_ptr<watch const>> all_;
};

}  // namespace detail

/// Memory of the CUDA device that the calling thread has chosen (cudaSetDevice; 0 by default).
///
/// Every thread has a stream of its own on each device, which does not wait for other streams. Work on tensors of this
/// space is queued there: a collective begins when all work that its rank has queued before is done. If a tensor is
/// written on another stream, wait for that stream first.
///
/// Threads  thread-safe.
/// Errors   std::bad_alloc if the device's memory is used up, otherwise comm_error with CUDA's error message.
struct cuda {
  static constexpr std::string_view name = "cuda";
  static constexpr std::size_t alignment = 256;

  [[nodiscard]] static void* allocate(std::size_t bytes) {
    void* block = nullptr;
    auto const code = ::cudaMalloc(&block, bytes == 0 ? 1 : bytes);
    if (code == cudaErrorMemoryAllocation) {
      (void)::cudaGetLastError();
      throw std::bad_alloc();
    }
    detail::expect_cuda(code, text("trireme::cuda: allocating ", how_many(bytes, "byte")));
    return block;
  }
  /// Waits first for this thread's stream if that waits for collectives (cudaFree would wait for them without a
  /// deadline).
  static void deallocate(void* block, std::size_t /*bytes*/) noexcept {
    if (detail::cuda_watches::any()) {
      try {
        finish();
      } catch (...) {  // every later call throws it again
      }
    }
    (void)::cudaFree(block);
  }

  /// This thread's stream on its device.
  [[nodiscard]] static ::cudaStream_t stream() {
    thread_local detail::cuda_streams streams;
    return streams.current();
  }
  /// Returns when all work that this thread has queued on its stream is done. Polls, and sleeps if that takes long.
  ///
  /// Errors   also those of the communicators whose collectives the stream waits for.
  static void finish() {
    auto* const mine = stream();
    unsigned polls = 0;
    detail::poll_until([&] {
      auto const code = ::cudaStreamQuery(mine);
      if (code == cudaErrorNotReady) {
        (void)::cudaGetLastError();
        if (++polls % 16 == 0) detail::cuda_watches::of_thread().look();
        return false;
      }
      detail::expect_cuda(code, "trireme::cuda: waiting for this thread's stream");
      return true;
    });
  }
};

/// The elements themselves, for kernels and communicators.
template <class T>
[[nodiscard]] constexpr T* raw(tensor_view<T, cuda> view) noexcept {
  return view.address();
}

}  // namespace trireme
