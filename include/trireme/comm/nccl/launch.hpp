#pragma once

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/command.hpp"
#include "trireme/comm/nccl/staging.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm::detail {

inline constexpr std::string_view nccl_who = "trireme::comm::nccl";

[[nodiscard]] inline bool nccl_went_well(ncclResult_t code) noexcept {
  return code == ncclSuccess || code == ncclInProgress;
}

class nccl_communicator;
class nccl_launch;
struct nccl_operation;
struct nccl_route;

/// A stream of a rank with calls of NCCL, and the operations that are issued there: they run in their order.
class nccl_lane {
 public:
  explicit nccl_lane(nccl_launch& launch);
  nccl_lane(nccl_lane const&) = delete;
  nccl_lane& operator=(nccl_lane const&) = delete;
  ~nccl_lane();

  [[nodiscard]] ::cudaStream_t stream() const noexcept { return stream_; }
  /// Makes the stream wait for all work that is on the calling thread's own stream now.
  void follow_thread() {
    trireme::detail::expect_cuda(::cudaEventRecord(before_, cuda::stream()), "trireme::comm::nccl: recording an event");
    trireme::detail::expect_cuda(::cudaStreamWaitEvent(stream_, before_, 0), "trireme::comm::nccl: ordering streams");
  }
  /// Whether anything issued here is not done.
  [[nodiscard]] bool is_busy() const noexcept {
    if (launching != nullptr) return true;
    bool const busy = ::cudaStreamQuery(stream_) == cudaErrorNotReady;
    (void)::cudaGetLastError();
    return busy;
  }

  /// Issued, but perhaps not yet queued on the stream: to be looked after before the next one is issued here.
  nccl_operation* launching = nullptr;
  std::vector<std::unique_ptr<nccl_operation>> owned;
  std::vector<nccl_operation*> idle;

 private:
  nccl_launch& launch_;
  ::cudaStream_t stream_ = nullptr;
  ::cudaEvent_t before_ = nullptr;
};

/// The state that all NCCL communicators of a rank share: one stream, so that every rank's device runs their operations
/// in one order; a stream for each route; the first failure, after which none of them works.
class nccl_launch {
 public:
  nccl_launch(bool in_rank_order, std::function<std::string()> who_is_missing)
      : ordered(in_rank_order), who_is_missing_(std::move(who_is_missing)), common(*this) {
    scratch_ = cuda::allocate(64);
  }
  nccl_launch(nccl_launch const&) = delete;
  nccl_launch& operator=(nccl_launch const&) = delete;
  ~nccl_launch() {
    ordered_operations.clear();  // so that nobody looks at them meanwhile
    cuda::deallocate(scratch_, 64);
  }

  bool const ordered;  ///< sums in rank order

  /// Eight bytes of device memory without meaningful contents; and others, for messages.
  [[nodiscard]] std::byte* scratch() const noexcept { return static_cast<std::byte*>(scratch_); }
  [[nodiscard]] std::byte* scratch_of_routes() const noexcept { return scratch() + 32; }

  [[nodiscard]] bool failed() const noexcept { return !message_.empty(); }
  void throw_if_failed(std::string_view operation) const {
    if (failed()) throw comm_error(message_, {-1, std::string(operation)});
  }
  /// Records the failure, ends the work on the device, and looks for the missing rank. Only the first failure counts.
  void fail(std::string const& sentence);
  /// Ends all communicators of this launch without waiting for others.
  void abort_all() noexcept;

  void enter(nccl_communicator& it) { live_.push_back(&it); }
  void leave(nccl_communicator& it) noexcept { std::erase(live_, &it); }
  void enter(nccl_lane& it) { lanes_.push_back(&it); }
  void leave(nccl_lane& it) noexcept;

  /// Operations that no request holds any longer and a thread's stream waits for, in the order in which it does.
  std::vector<nccl_operation*> ordered_operations;
  std::size_t operations = 0;  ///< of all lanes: how many `ordered_operations` may become
  std::uint64_t moments = 0;   ///< counts beginnings and orders
  /// Gives what is done of `ordered_operations` back to its lane, up to the first that is not.
  void collect_ordered();
  /// look_at_ordered() for waits on a stream that waits for these operations; it ends with this object.
  std::shared_ptr<trireme::detail::cuda_watches::watch const> const watch =
      std::make_shared<trireme::detail::cuda_watches::watch const>([this] { look_at_ordered(); });
  /// Throws if one of `ordered_operations` has failed or is later than its deadline.
  void look_at_ordered();
  /// Whether messages of routes are on the way: a message may wait for what this thread has yet to queue.
  std::shared_ptr<trireme::detail::cuda_postponed_frees::condition const> const messages_wait =
      std::make_shared<trireme::detail::cuda_postponed_frees::condition const>([this] { return has_messages(); });
  [[nodiscard]] bool has_messages() const noexcept {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [this](nccl_lane const* each) { return each != &common && each->is_busy(); });
  }

 private:
  void* scratch_ = nullptr;
  std::function<std::string()> who_is_missing_;
  std::string message_;
  std::vector<nccl_communicator*> live_;
  std::vector<nccl_lane*> lanes_;

 public:
  nccl_lane common;  ///< of all communicators, for everything but the messages of routes
};

/// Calls return at once, and a communicator that is split shares nothing with what comes from it, which would make them
/// wait for each other.
[[nodiscard]] inline ncclConfig_t nccl_configuration() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 0;
  return config;
}

/// One NCCL communicator that never blocks: calls return at once, and settled() checks whether they have been executed.
class nccl_communicator {
 public:
  /// Collective. `make(handle, config)` starts to make it.
  template <class Make>
  nccl_communicator(std::shared_ptr<nccl_launch> launch, std::chrono::milliseconds longest, Make&& make)
      : nccl_communicator(std::move(launch), longest, std::forward<Make>(make), nullptr, {}) {}
  /// That of a route, whose operations are in a lane of their own.
  template <class Make>
  nccl_communicator(std::shared_ptr<nccl_launch> launch, std::chrono::milliseconds longest, Make&& make,
                    nccl_lane* lane, route own)
      : deadline(longest), along(own), launch_(std::move(launch)), lane_(lane != nullptr ? lane : &launch_->common) {
    auto config = nccl_configuration();
    launch_->enter(*this);
    try {
      expect(make(&handle_, &config), "making a communicator");
      wait_until_settled("making a communicator");
      if (handle_ == nullptr) fail("NCCL returned no communicator");
      expect(ncclCommUserRank(handle_, &rank_), "asking for the rank");
      expect(ncclCommCount(handle_, &size_), "asking for the number of ranks");
    } catch (...) {
      launch_->leave(*this);
      give_up();
      throw;
    }
  }
  nccl_communicator(nccl_communicator const&) = delete;
  nccl_communicator& operator=(nccl_communicator const&) = delete;
  /// Waits, at most until the deadline, until the other ranks no longer need this one.
  ~nccl_communicator() {
    routes.clear();
    launch_->leave(*this);
    if (handle_ == nullptr) return;
    try {
      expect(ncclCommFinalize(handle_), "ending a communicator");
      wait_until_settled("ending a communicator");
      if (handle_ != nullptr) (void)ncclCommDestroy(std::exchange(handle_, nullptr));
    } catch (...) {  // fail() has aborted it if it was still listed
      give_up();
    }
  }

  std::chrono::milliseconds const deadline;
  route const along;  ///< of that of a route, in the ranks of the communicator whose route it is; otherwise empty

  [[nodiscard]] ncclComm_t handle() const noexcept { return handle_; }
  [[nodiscard]] nccl_launch& launch() const noexcept { return *launch_; }
  [[nodiscard]] std::shared_ptr<nccl_launch> const& shared_launch() const noexcept { return launch_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] nccl_lane& lane() const noexcept { return *lane_; }
  [[nodiscard]] ::cudaStream_t stream() const noexcept { return lane_->stream(); }
  std::uint64_t calls = 0;

  /// The open routes that begin or end at this rank.
  std::vector<std::unique_ptr<nccl_route>> routes;
  [[nodiscard]] nccl_route* find(route wanted) const noexcept;
  std::vector<route> opened;           ///< of all ranks
  std::vector<raw_transfer> unrouted;  ///< of the exchange that begins, what no route takes

  /// The interface for requests, as that of collective_engine.
  [[nodiscard]] bool test(nccl_operation& op);
  void wait(nccl_operation& op);
  void order(nccl_operation& op);
  void release(nccl_operation& op) noexcept;

  /// Whether all calls so far have been executed. Throws if one failed, here or (if NCCL detects it) on another rank.
  [[nodiscard]] bool settled(std::string_view doing) {
    if (handle_ == nullptr) return launch_->throw_if_failed(doing), false;
    ncclResult_t state = ncclSuccess;
    expect(ncclCommGetAsyncError(handle_, &state), doing);
    if (state == ncclInProgress) return false;
    expect(state, doing);
    return true;
  }
  void wait_until_settled(std::string_view doing) {
    auto const until = std::chrono::steady_clock::now() + deadline;
    trireme::detail::poll_until([&] {
      if (settled(doing)) return true;
      if (std::chrono::steady_clock::now() > until)
        fail(text(doing, " waited ", to_string(deadline),
                  " for the other ranks; find out why they are late, or raise comm::nccl{.deadline}"));
      return false;
    });
  }
  void expect(ncclResult_t code, std::string_view doing) {
    if (nccl_went_well(code)) return;
    auto const* const more = ncclGetLastError(handle_);
    fail(text(doing, " failed: NCCL reports: ", ncclGetErrorString(code),
              more == nullptr || *more == '\0' ? "" : text(" (", more, ")")));
  }
  /// Ends the launch and throws.
  [[noreturn]] void fail(std::string const& what) {
    launch_->fail(text(nccl_who, ": ", what));
    launch_->throw_if_failed(what);
    throw comm_error(text(nccl_who, ": ", what));  // not reached: the launch has failed
  }
  void give_up() noexcept {
    if (handle_ != nullptr) (void)ncclCommAbort(std::exchange(handle_, nullptr));
  }

 private:
  std::shared_ptr<nccl_launch> launch_;
  nccl_lane* lane_;
  ncclComm_t handle_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
};

/// A command in flight: issued to NCCL, then queued on the stream, then done.
struct nccl_operation {
  enum class stage : std::uint8_t { launching, running, finished };  // issued; on the stream; done

  nccl_operation() {
    trireme::detail::expect_cuda(::cudaEventCreateWithFlags(&done, cudaEventDisableTiming),
                                 "trireme::comm::nccl: making an event");
  }
  nccl_operation(nccl_operation const&) = delete;
  nccl_operation& operator=(nccl_operation const&) = delete;
  ~nccl_operation() { (void)::cudaEventDestroy(done); }

  nccl_communicator* where = nullptr;  ///< its request keeps it
  nccl_lane* lane = nullptr;
  route along;                              ///< of a route's communicator
  std::vector<nccl_operation*> also;        ///< of an exchange: its parts in other lanes
  std::uint64_t began = 0, ordered_at = 0;  ///< moments of the launch
  std::chrono::milliseconds deadline{};
  call what;
  std::uint64_t number = 0;
  stage at = stage::launching;
  bool staged = false;
  bool ordered = false;  ///< a stream waits for it
  std::uint32_t polls = 0;
  std::chrono::steady_clock::time_point since{};
  ::cudaEvent_t done = nullptr;
  cuda_staging staging;

  /// Memory for the terms of the others in an ordered reduction. Blocks that have become too small are kept, as in
  /// cuda_staging.
  [[nodiscard]] std::byte* terms(std::size_t bytes) {
    auto const had = terms_.empty() ? 0 : terms_.back().size();
    if (static_cast<std::int64_t>(bytes) > had)
      terms_.emplace_back(shape{std::max(static_cast<std::int64_t>(bytes), 2 * had)});
    return terms_.back().view().address();
  }

 private:
  std::vector<tensor<std::byte, cuda>> terms_;
};

/// The messages from one rank of a communicator to another: a communicator of the two, and a lane. Within one NCCL
/// communicator each operation waits for the one before, whatever the streams, so each direction has one.
struct nccl_route {
  nccl_route(nccl_launch& launch, route between) : lane(launch), along(between) {}

  nccl_lane lane;
  route along;
  std::shared_ptr<nccl_communicator> pair;  ///< its rank 0 sends to its rank 1
  std::vector<raw_transfer> part;           ///< of the exchange that begins
};

inline nccl_route* nccl_communicator::find(route wanted) const noexcept {
  for (auto const& each : routes)
    if (each->along == wanted) return each.get();
  return nullptr;
}

inline nccl_lane::nccl_lane(nccl_launch& launch) : launch_(launch) {
  trireme::detail::expect_cuda(::cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                               "trireme::comm::nccl: making a stream");
  try {
    trireme::detail::expect_cuda(::cudaEventCreateWithFlags(&before_, cudaEventDisableTiming),
                                 "trireme::comm::nccl: making an event");
    launch_.enter(*this);
  } catch (...) {
    if (before_ != nullptr) (void)::cudaEventDestroy(before_);
    (void)::cudaStreamDestroy(stream_);
    throw;
  }
}
inline nccl_lane::~nccl_lane() {
  launch_.leave(*this);
  (void)::cudaEventDestroy(before_);
  (void)::cudaStreamDestroy(stream_);
}

inline void nccl_launch::abort_all() noexcept {
  for (auto* const each : live_) each->give_up();
}

inline void nccl_launch::leave(nccl_lane& it) noexcept {
  std::erase(lanes_, &it);
  std::erase_if(ordered_operations, [&](nccl_operation const* each) { return each->lane == &it; });
}

inline void nccl_launch::fail(std::string const& sentence) {
  if (failed()) return;
  message_ = sentence;
  abort_all();
  // Aborted operations leave the device; afterwards no memory is accessed.
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (auto* const each : lanes_)
    trireme::detail::poll_until([&] {
      return ::cudaStreamQuery(each->stream()) != cudaErrorNotReady || std::chrono::steady_clock::now() > until;
    });
  (void)::cudaGetLastError();
  if (who_is_missing_)
    if (auto const more = who_is_missing_(); !more.empty()) message_ += text("; ", more);
}

}  // namespace trireme::comm::detail
