#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/core/device_rates.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

namespace detail {

/// "invalid argument (cudaErrorInvalidValue)"
[[nodiscard]] inline std::string cuda_sentence(::cudaError_t code) {
  return text(::cudaGetErrorString(code), " (", ::cudaGetErrorName(code), ")");
}

/// Throws device_error unless `code` is success. `doing` names the caller and its action: "trireme::comm::nccl: making
/// an event".
inline void expect_cuda(::cudaError_t code, std::string_view doing) {
  if (code == cudaSuccess) return;
  (void)::cudaGetLastError();  // clears an error that is not sticky
  throw device_error(text(doing, " failed: CUDA reports: ", cuda_sentence(code)));
}
/// Whether the environment variable TRIREME_CUDA_CHECK is set, to anything but 0: then the host waits after each call
/// that queues work, so that an error of a kernel is thrown by the call that queued it.
[[nodiscard]] inline bool cuda_checks_each_kernel() noexcept {
  static bool const asked = [] {
    auto const* const value = std::getenv("TRIREME_CUDA_CHECK");
    return value != nullptr && *value != '\0' && std::string_view(value) != "0";
  }();
  return asked;
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

/// Memory that a thread frees while a message of its rank may wait for what the thread has yet to queue: a send of a
/// pipeline's next micro-batch, say. cudaFree waits for the whole device, and so would wait for ever. The memory is
/// freed once no message waits.
class cuda_postponed_frees {
 public:
  using condition = std::function<bool()>;
  cuda_postponed_frees() = default;
  cuda_postponed_frees(cuda_postponed_frees const&) = delete;
  cuda_postponed_frees& operator=(cuda_postponed_frees const&) = delete;
  ~cuda_postponed_frees() {
    here() = false;
    free_all();
  }
  [[nodiscard]] static cuda_postponed_frees& of_thread() {
    thread_local cuda_postponed_frees all;
    return all;
  }
  /// Whether this thread has added a condition; also when its other objects are gone.
  [[nodiscard]] static bool& here() noexcept {
    thread_local bool some = false;
    return some;
  }
  /// Messages wait while it says so, until its owner lets go of it. One that is there already is not added again.
  void add(std::shared_ptr<condition const> const& it) {
    std::erase_if(conditions_, [](auto const& each) { return each.expired(); });
    for (auto const& each : conditions_)
      if (!each.owner_before(it) && !it.owner_before(each)) return;
    conditions_.push_back(it);
    here() = true;
  }
  /// Whether it takes the block, in place of the caller.
  [[nodiscard]] bool takes(void* block, ::cudaError_t (*free)(void*)) noexcept {
    try {
      if (!waits()) return false;
      blocks_.push_back({block, free});
      return true;
    } catch (...) {  // no memory
      return false;
    }
  }
  /// Frees what was postponed, if no message waits. Waits first for this thread's stream, as cuda::deallocate does.
  void free_what_may();

 private:
  struct owned_block {
    void* address;
    ::cudaError_t (*free)(void*);
  };
  [[nodiscard]] bool waits() const {
    for (auto const& each : conditions_)
      if (auto const kept = each.lock(); kept != nullptr && (*kept)()) return true;
    return false;
  }
  void free_all() noexcept {
    for (auto const& each : blocks_) (void)each.free(each.address);
    blocks_.clear();
  }

  std::vector<std::weak_ptr<condition const>> conditions_;
  std::vector<owned_block> blocks_;
};

/// Polls until `query()` no longer says that the device is not ready. What this thread's collectives have to say is
/// thrown meanwhile.
/// @param check  gets what the last query said, and throws if that is an error.
template <class Query, std::invocable<::cudaError_t> Check>
void poll_cuda(Query const& query, Check const& check) {
  unsigned polls = 0;
  poll_until([&] {
    auto const code = query();
    if (code == cudaErrorNotReady) {
      (void)::cudaGetLastError();
      if (++polls % 16 == 0) cuda_watches::of_thread().look();
      return false;
    }
    check(code);
    return true;
  });
}
template <class Query>
void poll_cuda(Query const& query, std::string_view doing) {
  poll_cuda(query, [doing](::cudaError_t code) { expect_cuda(code, doing); });
}

/// The pools of memory for kernels' scratch, one a device. What is freed stays in the pool, so that memory that grows
/// from call to call asks the driver seldom.
class cuda_pools {
 public:
  [[nodiscard]] static cuda_pools& of_process() {
    static auto* const all = new cuda_pools;  // never destroyed: threads that end later give memory back
    return *all;
  }
  /// The pool of a device; nullptr where its driver has none (some virtual GPUs).
  [[nodiscard]] ::cudaMemPool_t of_device(int device) {
    std::lock_guard const lock(mutex_);
    auto const at = static_cast<std::size_t>(device);
    if (at >= of_device_.size()) of_device_.resize(at + 1);
    auto& found = of_device_[at];
    if (!std::exchange(found.asked, true)) found.pool = make(device);
    return found.pool;
  }
  /// Gives the device what its pool holds and nobody uses.
  void trim(int device) noexcept {
    std::lock_guard const lock(mutex_);
    auto const at = static_cast<std::size_t>(device);
    if (at < of_device_.size() && of_device_[at].pool != nullptr) (void)::cudaMemPoolTrimTo(of_device_[at].pool, 0);
  }

 private:
  struct place {
    bool asked = false;
    ::cudaMemPool_t pool = nullptr;
  };
  static ::cudaMemPool_t make(int device) {
    int supported = 0;
    ::cudaMemPoolProps of{};
    of.allocType = cudaMemAllocationTypePinned;  // in CUDA's words: memory that stays on its device
    of.location.type = cudaMemLocationTypeDevice;
    of.location.id = device;
    ::cudaMemPool_t pool = nullptr;
    if (::cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device) != cudaSuccess ||
        supported == 0 || ::cudaMemPoolCreate(&pool, &of) != cudaSuccess) {
      (void)::cudaGetLastError();
      return nullptr;
    }
    std::uint64_t kept = ~std::uint64_t{0};
    (void)::cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept);
    // No stream waits for another's free: that one may wait for a collective that this one's rank has yet to join.
    int never = 0;
    (void)::cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &never);
    return pool;
  }

  std::mutex mutex_;
  std::vector<place> of_device_;
};

/// What the last plan of this thread's rank foresaw, in bytes; 0: none.
[[nodiscard]] inline std::size_t& cuda_planned_bytes() noexcept {
  thread_local std::size_t bytes = 0;
  return bytes;
}

/// The error of an allocation that this thread's device has no memory for.
[[nodiscard]] inline device_memory_error out_of_cuda_memory(std::string_view who, std::size_t asked) {
  (void)::cudaGetLastError();
  device_memory_state now{.asked = asked, .planned = cuda_planned_bytes()};
  int device = 0;
  (void)::cudaGetDevice(&device);
  if (::cudaMemGetInfo(&now.free, &now.total) != cudaSuccess) {
    (void)::cudaGetLastError();
    now.free = now.total = 0;
  }
  auto sentence = text(who, ": no memory for ", how_many(asked, "byte"), " on device ", device);
  if (now.total > 0) sentence += text(", which has ", now.free, " of ", how_many(now.total, "byte"), " free");
  if (now.planned > 0)
    sentence += text(" (the plan of this rank foresaw at least ", how_many(now.planned, "byte"), ")");
  sentence += "; take a smaller batch, more micro-batches or nn::checkpointed, or shard by parallel::zero";
  return {sentence, now};
}

/// Waits for this thread's stream, which then has freed what was freed in its order, and gives the device what its pool
/// holds and nobody uses. For an allocation that has failed.
void empty_cuda_pool();

/// Memory of the device that is allocated at once. If the device has none left, the pool of scratch gives back first
/// what this thread has freed in the order of its stream.
/// Errors   device_memory_error, or device_error with CUDA's message.
[[nodiscard]] inline void* cuda_allocate(std::string_view who, std::size_t bytes) {
  void* block = nullptr;
  auto code = ::cudaMalloc(&block, bytes);
  if (code == cudaErrorMemoryAllocation) {
    empty_cuda_pool();
    code = ::cudaMalloc(&block, bytes);
  }
  if (code == cudaErrorMemoryAllocation) throw out_of_cuda_memory(who, bytes);
  expect_cuda(code, text(who, ": allocating ", how_many(bytes, "byte")));
  return block;
}

}  // namespace detail

/// Pinned memory of this process, from which the device copies while the host goes on.
///
/// Errors   comm_error with CUDA's error message.
struct cuda_staging {
  static constexpr std::string_view name = "cuda_staging";
  static constexpr std::size_t alignment = 64;
  static constexpr bool touchable = true;

  [[nodiscard]] static void* allocate(std::size_t bytes) {
    void* block = nullptr;
    detail::expect_cuda(::cudaMallocHost(&block, bytes == 0 ? 1 : bytes),
                        text("trireme::cuda: allocating ", how_many(bytes, "byte"), " of pinned memory"));
    return block;
  }
  /// Later, while messages of a pipeline wait, as cuda::deallocate.
  static void deallocate(void* block, std::size_t /*bytes*/) noexcept {
    if (detail::cuda_postponed_frees::here() &&
        detail::cuda_postponed_frees::of_thread().takes(block, [](void* it) { return ::cudaFreeHost(it); }))
      return;
    (void)::cudaFreeHost(block);
  }
};

/// Memory of the CUDA device that the calling thread has chosen (cudaSetDevice; 0 by default).
///
/// Every thread has a stream of its own on each device, which does not wait for other streams. Work on tensors of this
/// space is queued there: a collective begins when all work that its rank has queued before is done. If a tensor is
/// written on another stream, wait for that stream first.
///
/// Bytes    allocate() takes memory of the device at once (cudaMalloc), and deallocate() waits for the device, since
///          collectives and the ranks of comm::threads use a tensor on other streams than its owner's. A training
///          allocates in its first step only. Memory of a pool that is freed in the order of one stream
///          (cudaMallocAsync) has none of that safety, and other devices of the process, from which NCCL may read, may
///          not read it until that is granted. So only the scratch memory of kernels, which one stream alone uses, is
///          of that kind (detail::cuda_stream_memory).
/// Threads  thread-safe.
/// Errors   device_memory_error (a std::bad_alloc) if the device's memory is used up, otherwise device_error (a
///          comm_error) with CUDA's error message.
struct cuda {
  static constexpr std::string_view name = "cuda";
  static constexpr std::size_t alignment = 256;
  using staging = cuda_staging;

  [[nodiscard]] static void* allocate(std::size_t bytes) {
    if (detail::cuda_postponed_frees::here()) detail::cuda_postponed_frees::of_thread().free_what_may();
    return detail::cuda_allocate("trireme::cuda", bytes == 0 ? 1 : bytes);
  }
  /// Waits first for this thread's stream if that waits for collectives (cudaFree would wait for them without a
  /// deadline). While messages of a pipeline wait, the memory is freed later.
  static void deallocate(void* block, std::size_t /*bytes*/) noexcept {
    if (detail::cuda_postponed_frees::here() &&
        detail::cuda_postponed_frees::of_thread().takes(block, [](void* it) { return ::cudaFree(it); }))
      return;
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
    detail::poll_cuda([&] { return ::cudaStreamQuery(mine); }, expect_done);
  }

  /// Throws device_error unless all work of this thread's stream is done: `code` of a query.
  static void expect_done(::cudaError_t code) {
    if (code == cudaSuccess) return;
    (void)::cudaGetLastError();
    throw device_error(
        text("trireme::cuda: waiting for this thread's stream failed: CUDA reports: ", detail::cuda_sentence(code),
             detail::cuda_checks_each_kernel() ? ""
                                               : ", from something that was queued before; "
                                                 "TRIREME_CUDA_CHECK=1 in the environment names it"));
  }

  /// All memory of this thread's device; 0 if CUDA does not say, or there is no device.
  [[nodiscard]] static std::size_t device_bytes() noexcept {
    std::size_t free = 0, total = 0;
    if (::cudaMemGetInfo(&free, &total) == cudaSuccess) return total;
    (void)::cudaGetLastError();
    return 0;
  }
  /// The most that this thread's device does in products of this type, and that its memory moves; `tf32`: products of
  /// float are rounded so. The clocks are the highest that the device says.
  [[nodiscard]] static device_rates rates(dtype of, bool tf32 = false) noexcept {
    int device = 0;
    bool known = ::cudaGetDevice(&device) == cudaSuccess;
    auto const says = [&](::cudaDeviceAttr what) {
      int value = 0;
      if (known && ::cudaDeviceGetAttribute(&value, what, device) == cudaSuccess) return value;
      known = false;
      (void)::cudaGetLastError();
      return 0;
    };
    auto const in_a_clock = detail::products_of_multiprocessor(says(cudaDevAttrComputeCapabilityMajor),
                                                               says(cudaDevAttrComputeCapabilityMinor), of, tf32);
    constexpr double kilohertz = 1e3, bits_of_byte = 8, transfers_of_clock = 2;
    return {.flops = 2 * in_a_clock * says(cudaDevAttrMultiProcessorCount) * kilohertz * says(cudaDevAttrClockRate),
            .bandwidth = transfers_of_clock * kilohertz * says(cudaDevAttrMemoryClockRate) *
                         says(cudaDevAttrGlobalMemoryBusWidth) / bits_of_byte};
  }
  /// What a plan foresees that this thread's rank holds, for the sentence of device_memory_error. plan() calls it.
  static void remember_plan(std::size_t bytes) noexcept { detail::cuda_planned_bytes() = bytes; }
};

namespace detail {

/// Throws device_error unless `code` is success and, under TRIREME_CUDA_CHECK, what this thread has queued succeeds.
inline void expect_queued(::cudaError_t code, std::string_view doing) {
  expect_cuda(code, doing);
  if (!cuda_checks_each_kernel()) return;
  try {
    cuda::finish();
  } catch (device_error const& problem) {
    throw device_error(text(doing, ": ", problem.what()));
  }
}

inline void cuda_postponed_frees::free_what_may() {
  if (blocks_.empty() || waits()) return;
  cuda::finish();
  free_all();
}

inline void empty_cuda_pool() {
  (void)::cudaGetLastError();
  cuda::finish();
  int device = 0;
  (void)::cudaGetDevice(&device);
  cuda_pools::of_process().trim(device);
}

/// Memory of the device that only work on one thread's stream uses: it is allocated and freed in the order of that
/// stream, from the device's pool, so that nobody waits when it grows. Where the device has no pools it is ordinary
/// memory. Its thread's stream must outlive it.
class cuda_stream_memory {
 public:
  cuda_stream_memory() = default;
  cuda_stream_memory(cuda_stream_memory&& other) noexcept { *this = std::move(other); }
  cuda_stream_memory& operator=(cuda_stream_memory&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~cuda_stream_memory() { release(); }

  [[nodiscard]] void* address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// At least that much on this thread's present device, without the contents of before.
  /// Errors   device_memory_error; then it has no memory.
  void replace(std::string_view who, std::size_t bytes) {
    release();
    int device = 0;
    expect_cuda(::cudaGetDevice(&device), "trireme::cuda: asking for the device");
    if (auto* const pool = cuda_pools::of_process().of_device(device); pool != nullptr) {
      auto* const stream = cuda::stream();
      auto code = ::cudaMallocFromPoolAsync(&address_, bytes, pool, stream);
      if (code == cudaErrorMemoryAllocation) {  // perhaps what was freed is not yet free
        empty_cuda_pool();
        code = ::cudaMallocFromPoolAsync(&address_, bytes, pool, stream);
      }
      if (code != cudaSuccess) address_ = nullptr;
      if (code == cudaErrorMemoryAllocation) throw out_of_cuda_memory(who, bytes);
      expect_cuda(code, text(who, ": allocating ", how_many(bytes, "byte")));
      stream_ = stream;
    } else {
      address_ = cuda_allocate(who, bytes);
    }
    bytes_ = bytes;
  }

 private:
  void release() noexcept {
    if (address_ == nullptr) return;
    if (stream_ != nullptr)
      (void)::cudaFreeAsync(address_, stream_);
    else
      cuda::deallocate(address_, bytes_);
    address_ = nullptr;
    bytes_ = 0;
    stream_ = nullptr;
  }

  void* address_ = nullptr;
  std::size_t bytes_ = 0;
  ::cudaStream_t stream_ = nullptr;  // of its allocation; nullptr: not of a pool
};

}  // namespace detail

/// The elements themselves, for kernels and communicators.
template <class T>
[[nodiscard]] constexpr T* raw(tensor_view<T, cuda> view) noexcept {
  return view.address();
}

}  // namespace trireme
