#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/contract/numerics.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/batch_queue.hpp"
#include "trireme/ops/phantom.hpp"
#include "trireme/ops/squares.hpp"

/// A device without a device: memory without elements, in which a whole training notes what its kernels and its
/// collectives read and write, and on which of two queues.
///
/// Kernels, and copies to and from the host, work on one queue of a rank; its collectives on another one. What is
/// started on the second sees all that was queued on the first. The first sees the result of a collective after order()
/// or wait() of its request. So a kernel that writes what a pending collective reads or writes, or reads what it
/// writes, and memory that is released under it, are findings: on a device they would be races.
///
/// Batches are copied on a third queue, from memory that a loader fills: a kernel that reads one without order(), a
/// copy to memory that a kernel still reads, and a loader that writes what is still to be copied are findings, too.
namespace recording {

using trireme::text;

struct access {
  std::uintptr_t begin = 0, end = 0;
  bool writes = false;
  [[nodiscard]] bool conflicts(access const& other) const noexcept {
    return (writes || other.writes) && begin < other.end && other.begin < end;
  }
};

/// A collective, or the copy of a batch with this number, that the rank's kernels are not ordered after.
struct pending {
  std::string name;
  std::vector<access> uses;
  std::int64_t copy = 0;
};
/// What a kernel, or a copy, uses of the memory that batches are in.
struct numbered_access {
  std::int64_t number;
  std::string name;
  access use;
};
/// The number of a call that does nothing, for each kind of call on the queue of batches; below 0: all do what they
/// say. For finish() 0 means every call.
struct omissions {
  std::int64_t order = -1, follow = -1, finish = -1;
};

/// What one rank has done.
struct log {
  std::list<pending> open;
  std::vector<std::string> findings;
  std::int64_t kernels = 0;
  std::int64_t orders = 0;
  std::int64_t waits = 0;          ///< of the host, for a request
  std::vector<std::string> reads;  ///< by the host, of what kernels have computed since it read last
  std::int64_t left_out = -1;      ///< the number of an order() that does nothing
  bool queued = false;             ///< kernels since the last read

  std::int64_t copies = 0;  ///< of parts of batches
  std::int64_t copy_orders = 0, follows = 0, finishes = 0;
  omissions without{};
  std::int64_t followed = 0;               ///< copies begin behind this kernel
  std::vector<access> landings{};          ///< where copies went
  std::vector<numbered_access> touched{};  ///< by kernels, of these
  std::mutex reading_lock;
  std::vector<numbered_access> reading{};  ///< by copies, of the memory of the host

  void uses(std::string_view who, std::vector<access> const& all) {
    for (auto const& one : open)
      for (auto const& mine : all)
        for (auto const& its : one.uses)
          if (mine.conflicts(its) && findings.size() < 20)
            findings.push_back(text(who, mine.writes ? " writes" : " reads", " what ", one.name,
                                    its.writes ? " writes" : " reads", ", without order() between them"));
    for (auto const& mine : all)
      for (auto const& landing : landings)
        if (mine.begin < landing.end && landing.begin < mine.end) touched.push_back({kernels, std::string(who), mine});
  }
  /// A loader writes there; in any thread.
  void host_writes(void const* address, std::size_t bytes) {
    auto const at = reinterpret_cast<std::uintptr_t>(address);
    std::lock_guard const one(reading_lock);
    for (auto const& each : reading)
      if (each.use.conflicts({at, at + bytes, true}) && late.size() < 20)
        late.push_back("the loader writes what the copy of a batch reads, without finish() between them");
  }
  std::vector<std::string> late{};  ///< findings of host_writes
  void host_reads(std::string_view what) {
    if (queued) reads.emplace_back(what);
    queued = false;
  }
};

/// The log of the calling thread's rank; a rank's helper threads have none.
inline thread_local log* current = nullptr;

template <class T, class Space>
void add(std::vector<access>& to, trireme::tensor_view<T, Space> view) {
  if (view.empty()) return;
  auto const at = reinterpret_cast<std::uintptr_t>(view.address());
  to.push_back({at, at + static_cast<std::size_t>(view.size()) * sizeof(T), !std::is_const_v<T>});
}
template <class T>
void add(std::vector<access>& to, T const& it) {
  if constexpr (requires { it.terms; }) {  // of a gradient
    add(to, it.terms);
  } else if constexpr (requires { it.way(); }) {  // weights
    add(to, it.view());
  } else if constexpr (requires { it.before_activation; }) {
    add(to, it.before_activation);
    if constexpr (requires { it.bias; }) {
      add(to, it.bias);
      add(to, it.residual);
    }
  } else if constexpr (requires { it.begin()->address(); }) {
    for (auto const& each : it) add(to, each);
  }
}

/// Memory of the host that a loader fills.
struct staging_memory {
  static constexpr std::string_view name = "recording_staging";
  static constexpr std::size_t alignment = trireme::host::alignment;
  static constexpr bool touchable = true;
  [[nodiscard]] static void* allocate(std::size_t bytes) { return trireme::host::allocate(bytes); }
  static void deallocate(void* block, std::size_t bytes) noexcept {
    if (current != nullptr) current->host_writes(block, bytes);
    trireme::host::deallocate(block, bytes);
  }
};

/// The memory space.
struct memory {
  static constexpr std::string_view name = "recording";
  static constexpr std::size_t alignment = trireme::phantom::alignment;
  static constexpr bool without_elements = true;
  using complete_kernels = memory;
  using staging = staging_memory;

  [[nodiscard]] static void* allocate(std::size_t bytes) {
    auto* const block = trireme::host::allocate(bytes);
    std::memset(block, 0, bytes);
    std::lock_guard const one(lock());
    blocks()[reinterpret_cast<std::uintptr_t>(block)] = bytes;
    return block;
  }
  static void deallocate(void* block, std::size_t bytes) noexcept {
    auto const at = reinterpret_cast<std::uintptr_t>(block);
    if (current != nullptr) current->uses("the release of memory", {{at, at + bytes, true}});
    {
      std::lock_guard const one(lock());
      blocks().erase(at);
    }
    trireme::host::deallocate(block, bytes);
  }
  /// Whether it lies in a block of this memory.
  [[nodiscard]] static bool contains(void const* address) {
    auto const at = reinterpret_cast<std::uintptr_t>(address);
    std::lock_guard const one(lock());
    auto const after = blocks().upper_bound(at);
    return after != blocks().begin() && at < std::prev(after)->first + std::prev(after)->second;
  }
  template <class... Tensors>
  static void note_kernel(std::string_view kernel, Tensors const&... tensors) noexcept {
    if (current == nullptr) return;
    std::vector<access> all;
    (add(all, tensors), ...);
    ++current->kernels;
    current->queued = true;
    current->uses(kernel, all);
    if (kernel == "read" || kernel == "download" || kernel == "finite" || kernel == "sum_of_squares" ||
        kernel == "hash" || kernel == "sort_by_expert")
      current->host_reads(kernel);
  }

 private:
  static std::map<std::uintptr_t, std::size_t>& blocks() {
    static std::map<std::uintptr_t, std::size_t> all;
    return all;
  }
  static std::mutex& lock() {
    static std::mutex one;
    return one;
  }
};

/// Losses that are computed on the queue, until the host reads them.
struct losses : trireme::loss_sum {
  losses() = default;
  losses(trireme::loss_sum const& sum) : loss_sum(sum) {}  // NOLINT: as kernels return one
  [[nodiscard]] trireme::loss_sum read() const noexcept {
    if (current != nullptr) current->host_reads("losses");
    return *this;
  }
};

/// A request that tells order() from wait(). Of one that is dropped, order() is called.
template <trireme::communication_request Inner>
class request {
 public:
  request() = default;
  request(Inner&& inner, pending note) : inner_(std::move(inner)), log_(current) {
    if (log_ == nullptr) return;
    log_->open.push_back(std::move(note));
    at_ = std::prev(log_->open.end());
  }
  request(request&& other) noexcept
      : inner_(std::move(other.inner_)), log_(std::exchange(other.log_, nullptr)), at_(other.at_) {}
  request& operator=(request&& other) noexcept {
    if (this == &other) return *this;
    close();
    inner_ = std::move(other.inner_);
    log_ = std::exchange(other.log_, nullptr);
    at_ = other.at_;
    return *this;
  }
  ~request() { close(); }

  [[nodiscard]] bool test() { return inner_.test(); }
  void wait() {
    if (log_ != nullptr) ++log_->waits;
    close();
    inner_.wait();
  }
  void order() {
    if (log_ != nullptr && log_->orders++ == log_->left_out)
      log_ = nullptr;  // never ordered
    else
      close();
    inner_.wait();
  }

 private:
  void close() noexcept {
    if (auto* const log = std::exchange(log_, nullptr)) log->open.erase(at_);
  }

  Inner inner_{};
  log* log_ = nullptr;
  std::list<pending>::iterator at_{};
};

/// Ranks that are threads, computing in recording memory.
class world : public trireme::comm::collectives<world> {
  using inner = trireme::comm::threads_world;

 public:
  using space = memory;
  using request =
      recording::request<decltype(std::declval<inner&>().submit(std::declval<trireme::comm::command const&>()))>;
  static constexpr std::string_view name = "recording";

  explicit world(inner&& ranks) : ranks_(std::move(ranks)) {}

  [[nodiscard]] int rank() const noexcept { return ranks_.rank(); }
  [[nodiscard]] int size() const noexcept { return ranks_.size(); }
  [[nodiscard]] world split(int color, int key) { return world(ranks_.split(color, key)); }
  [[nodiscard]] world duplicate() { return world(ranks_.duplicate()); }

  template <class Space>
  static constexpr bool supports(trireme::comm::collective kind, trireme::dtype type,
                                 trireme::comm::reduction_kind op) noexcept {
    return inner::supports<Space>(kind, type, op);
  }
  /// Blocking, on the collectives' queue, too: the host waits for that queue, and reads no result of a kernel.
  void run(trireme::comm::command const& it) { ranks_.execute(it); }
  [[nodiscard]] request start(trireme::comm::command const& it) {
    return {ranks_.submit(it), {to_string(it.what), uses_of(it)}};
  }

 private:
  [[nodiscard]] std::vector<access> uses_of(trireme::comm::command const& it) const {
    using enum trireme::comm::collective;
    std::vector<access> all;
    auto const add = [&](void const* at, std::size_t bytes, bool writes) {
      auto const from = reinterpret_cast<std::uintptr_t>(at);
      if (bytes > 0 && memory::contains(at)) all.push_back({from, from + bytes, writes});
    };
    auto bytes = static_cast<std::size_t>(it.what.count) * it.element_bytes;
    for (auto const& each : it.raw_transfers)
      add(each.address, static_cast<std::size_t>(each.count) * trireme::size_of(each.type), !each.sent);
    if (!it.raw_transfers.empty()) return all;
    if (!it.counts.empty()) {
      bytes = 0;
      for (auto const n : it.counts) bytes += static_cast<std::size_t>(n) * it.element_bytes;
    }
    auto const ranks = static_cast<std::size_t>(size());
    bool const root = it.what.root == rank();
    if (it.what.kind == gather && root) return add(it.to, ranks * bytes, true), add(it.from, bytes, false), all;
    if (it.what.kind == scatter && root) return add(it.from, ranks * bytes, false), add(it.to, bytes, true), all;
    if (it.from != it.to) add(it.from, bytes, false);
    add(it.to, bytes, it.what.kind != broadcast || !root);
    return all;
  }

  inner ranks_;
};

}  // namespace recording

template <>
struct trireme::losses_of_space<recording::memory> {
  using type = recording::losses;
};

// Ranks read some messages, as sizes of others: what is uploaded, sent and downloaded are bytes. The rest stays 0.
template <>
struct trireme::ops::on<recording::memory> : trireme::ops::phantom_kernels<recording::memory> {
  template <class T>
  static void upload(view<T> y, std::type_identity_t<std::span<T const>> x) {
    phantom_kernels::upload(y, x);
    std::memcpy(y.address(), x.data(), x.size_bytes());
  }
  template <class T>
  static void download(std::span<T> y, input<T> x) {
    phantom_kernels::download(y, x);
    std::memcpy(y.data(), x.address(), y.size_bytes());
  }
};
template <>
struct trireme::comm::space_kernels<recording::memory> : trireme::comm::space_kernels<trireme::host> {};

template <>
class trireme::ops::batch_queue<recording::memory> {
 public:
  struct event {
    std::int64_t copy = 0, kernel = 0;
  };
  batch_queue() = default;
  batch_queue(batch_queue const&) = delete;
  batch_queue& operator=(batch_queue const&) = delete;
  ~batch_queue() {
    if (recording::current != nullptr) finished(*recording::current, {recording::current->copies});
  }

  static void copy(void* to, void const* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
    if (recording::current == nullptr) return;
    auto& log = *recording::current;
    auto const use = [bytes](void const* at, bool writes) {
      auto const begin = reinterpret_cast<std::uintptr_t>(at);
      return recording::access{begin, begin + bytes, writes};
    };
    auto const written = use(to, true);
    for (auto const& each : log.touched)
      if (each.number > log.followed && each.use.conflicts(written) && log.findings.size() < 20)
        log.findings.push_back(
            trireme::text("the copy of a batch writes what ", each.name, " uses, without follow() between them"));
    ++log.copies;
    log.landings.push_back(written);
    log.open.push_back({"the copy of a batch", {written}, log.copies});
    std::lock_guard const one(log.reading_lock);
    log.reading.push_back({log.copies, {}, use(from, false)});
  }
  static void copied(event& at) {
    if (recording::current != nullptr) at.copy = recording::current->copies;
  }
  static void order(event const& at) {
    auto* const log = recording::current;
    if (log == nullptr || at.copy == 0 || log->copy_orders++ == log->without.order) return;
    log->open.remove_if([&](auto const& each) { return each.copy > 0 && each.copy <= at.copy; });
  }
  static void computed(event& at) {
    if (recording::current != nullptr) at.kernel = recording::current->kernels;
  }
  static void follow(event const& at) {
    auto* const log = recording::current;
    if (log == nullptr || at.kernel == 0 || log->follows++ == log->without.follow) return;
    log->followed = std::max(log->followed, at.kernel);
  }
  static void finish(event const& at) {
    auto* const log = recording::current;
    if (log == nullptr) return;
    ++log->finishes;
    if (log->without.finish < 0) finished(*log, at);
  }

 private:
  static void finished(recording::log& log, event const& at) {
    log.open.remove_if([&](auto const& each) { return each.copy > 0 && each.copy <= at.copy; });
    std::lock_guard const one(log.reading_lock);
    std::erase_if(log.reading, [&](auto const& each) { return each.number <= at.copy; });
  }
};

template <>
class trireme::ops::nonfinite_flag<recording::memory> {
 public:
  void clear() noexcept {}
  template <class T>
  void look_at(tensor_view<T, recording::memory> x) {
    recording::memory::note_kernel("nonfinite_flag", tensor_view<T const, recording::memory>(x));
  }
  void fetch() noexcept {}
  [[nodiscard]] bool found() const noexcept { return false; }
};

template <>
class trireme::ops::squares_total<recording::memory> {
 public:
  explicit squares_total(exact_sum&) noexcept {}
  template <class T>
  void add(tensor_view<T, recording::memory> x) {
    recording::memory::note_kernel("squares", tensor_view<T const, recording::memory>(x));
  }
  template <class T>
  void expect_finite(tensor_view<T, recording::memory> x) {
    add(x);
  }
  void finish() noexcept {
    if (recording::current != nullptr) recording::current->host_reads("squares");
  }
};
