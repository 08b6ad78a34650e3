#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../support/simt/order.hpp"
#include "trireme/comm/detail/combine.hpp"
#include "trireme/comm/detail/cuda_kernels.hpp"

// A stand-in for the few calls of the CUDA runtime and of NCCL that the library makes, for machines without a GPU:
// device memory is host memory, a stream is a queue of work, and the ranks of an NCCL communicator are threads of this
// process. What works on it still has to work on a GPU (scripts/test-gpu), but what fails on it fails there too. It is
// linked instead of CUDA and NCCL. Memory of the device is filled with 0xFF (NaN) when it is allocated. Kernels:
// combine.cpp answers for those of communicators by loops of the host; a program that has the library's kernels
// (tests/simt/cuda) runs them in the stand-in for a GPU's threads (queue_kernel).
//
// Queued work runs in an order that streams and events allow: simt::order() chooses it. So an event that is missing
// between two streams, or a wait of the host, gives other results in one order than in another. Whatever the order,
// the second query after the last call (in orders from 4 on, one of the first four) makes work run: that of the stream
// or event, what it waits for, and the part of every other rank in a collective that is among it.
namespace stand_in {

/// How many there are; all have the same memory.
inline int devices = 4;

/// What a program has asked of CUDA since it began, for tests that count.
struct call_counts {
  std::atomic<std::int64_t> device_allocations{0};  ///< cudaMalloc, and from pools
  std::atomic<std::int64_t> pinned_allocations{0};  ///< cudaMallocHost
  std::atomic<std::int64_t> host_waits{0};          ///< for a stream, or for an event by several queries
};
inline call_counts& counts() {
  static call_counts all;
  return all;
}
/// The memory of a device in bytes: an allocation beyond it fails. STAND_IN_DEVICE_BYTES in the environment is the
/// number at first, or 64 GiB.
inline std::atomic<std::size_t>& device_bytes() {
  static std::atomic<std::size_t> bytes{[] {
    auto const* const asked = std::getenv("STAND_IN_DEVICE_BYTES");
    return asked == nullptr ? std::size_t{64} << 30 : static_cast<std::size_t>(std::strtoull(asked, nullptr, 10));
  }()};
  return bytes;
}
/// Whether cudaFree and cudaFreeHost wait for all work of the device that was queued before, as on a device: then what
/// frees memory while a message waits for what its host has yet to queue waits for ever.
inline std::atomic<bool> frees_wait{false};
/// How often such a wait took longer than `longest_free`, and was given up.
inline std::atomic<int> endless_frees{0};
inline std::chrono::milliseconds longest_free{10'000};
/// Whether devices have pools of memory; set it before the first allocation from one.
inline std::atomic<bool> has_pools{true};

/// The kernel of the program, counted from 1, that reads where it may not: it does not run, and from then on CUDA's
/// calls report that. 0: none. STAND_IN_FAULTY_KERNEL in the environment is the number at first.
inline std::atomic<std::int64_t>& faulty_kernel() {
  static std::atomic<std::int64_t> number{[] {
    auto const* const asked = std::getenv("STAND_IN_FAULTY_KERNEL");
    return asked == nullptr ? std::int64_t{0} : static_cast<std::int64_t>(std::strtoll(asked, nullptr, 10));
  }()};
  return number;
}
/// Whether that kernel has run.
inline std::atomic<bool> has_failed{false};

/// Work tries; it is done when it says so. If it is needed, it first makes what it waits for run.
using work = std::function<bool(bool needed)>;

inline std::recursive_mutex& world_lock() {
  static std::recursive_mutex only;
  return only;
}
/// A number that depends on all three (SplitMix64), the same in every run.
[[nodiscard]] inline std::uint64_t drawn(int order, int stream, int turn) {
  auto x = static_cast<std::uint64_t>(order) << 40U ^ static_cast<std::uint64_t>(stream) << 20U ^
           static_cast<std::uint64_t>(turn);
  x = (x + 0x9E3779B97F4A7C15U) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27U) * 0x94D049BB133111EBU;
  return x ^ x >> 31U;
}

struct stream {
  std::deque<work> queue;
  bool going_on = false;
  int device = 0;
  int number = 0;   // among the streams of its host thread
  int queries = 0;  // since work was queued
  int turn = 0;     // of what is drawn
  bool ended = false;
  stream* before_of_thread = nullptr;  // the one that the thread made before

  void go_on(bool needed, int most = INT_MAX) {
    if (going_on) return;  // a stream that waits for it waits for this one
    going_on = true;
    try {
      for (; most > 0 && !queue.empty() && queue.front()(needed); --most) queue.pop_front();
    } catch (...) {  // a kernel that does something wrong
      queue.clear();
      going_on = false;
      throw;
    }
    going_on = false;
  }
  /// How much of its work runs now, though nobody waits for it.
  [[nodiscard]] int eagerness(int order) {
    if (order == 0) return 0;
    if (order == 3) return INT_MAX;
    if (order < 3) return (number + order) % 2 == 1 ? INT_MAX : 0;
    switch (drawn(order, number, -1) % 4) {
      case 0:
        return 0;
      case 1:
        return INT_MAX;
      default:
        return static_cast<int>(drawn(order, number, ++turn) % 8) - 4;
    }
  }
  /// Whether a query makes its work run, after `queries` that did not.
  [[nodiscard]] bool is_needed(int queries_before) {
    int const order = simt::order();
    return queries_before >= (order < 4 ? 1 : static_cast<int>(drawn(order, number, ++turn) % 4));
  }
};
/// All that were ever made: events may speak of a stream after its end.
inline std::deque<stream>& streams() {
  static std::deque<stream> all;
  return all;
}
/// The last stream that this host thread has made.
inline stream*& last_of_thread() {
  thread_local stream* last = nullptr;
  return last;
}
/// Lets the streams of this thread go on as the order says. With the lock.
inline void go_on_in_order() {
  int const order = simt::order();
  if (order == 0) return;
  for (auto* each = last_of_thread(); each != nullptr; each = each->before_of_thread)
    if (!each->ended) each->go_on(false, each->eagerness(order));
}
inline void queue(stream& on, work what) {
  std::lock_guard const lock(world_lock());
  on.queue.push_back(std::move(what));
  on.queries = 0;
  go_on_in_order();
}
/// Queues a kernel on a cudaStream_t.
void queue_kernel(void* on, std::function<void()> kernel);
/// The last time that an event was recorded. Who waits for it does not wait for later ones.
struct event {
  struct record {
    bool done = true;
    stream* on = nullptr;
    int queries = 0;
    bool is_done(bool needed) {
      if (!done && needed) on->go_on(true);
      return done || on->queue.empty();  // an aborted stream has dropped its work
    }
  };
  std::shared_ptr<record> last = std::make_shared<record>();
};

/// One message or one reduction's part, as a rank has given it.
struct offer {
  int kind;  // of collective below; sends are -1
  void const* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
};
struct meeting {
  std::vector<std::unique_ptr<offer>> offers;
  int left = 0;
};
struct wish {
  int color, key, rank;
};
/// What the ranks of a communicator share.
struct group {
  explicit group(int ranks) : size(ranks) {}
  int size;
  std::map<std::uint64_t, meeting> meetings;                             // by the number of the call
  std::map<std::pair<int, int>, std::deque<std::weak_ptr<offer>>> mail;  // an aborted rank's are gone, and never come
  /// The senders and receivers that have asked for a message to each other: two ranks connect in their first one.
  std::set<std::pair<int, int>> sending, receiving;
  std::map<std::uint64_t, std::vector<wish>> splits;
  std::map<std::pair<std::uint64_t, int>, std::shared_ptr<group>> raw_transfers;
  int joined = 0;
  std::vector<stream*> streams = std::vector<stream*>(static_cast<std::size_t>(size));  // that each rank has used
  /// A collective needs all ranks: those that have queued their part come to it, as on a device.
  void need_others(int rank) {
    for (std::size_t other = 0; other < streams.size(); ++other)
      if (streams[other] != nullptr && static_cast<int>(other) != rank) streams[other]->go_on(true);
  }
};
struct communicator {
  std::shared_ptr<group> of;
  int rank = 0;
  std::uint64_t calls = 0;
  std::uint64_t splits = 0;
  std::function<bool(communicator&)> finish_split{};  // makes this rank's part once all have asked
  std::vector<std::pair<int, int>> connecting{};
  stream* used = nullptr;
  bool ending = false;

  /// Operations of one communicator wait for each other, whatever their streams: one on two streams is a mistake of the
  /// test, or of the library.
  void use(stream* on) {
    if (used != nullptr && used != on) std::abort();
    of->streams[static_cast<std::size_t>(rank)] = used = on;
  }
  /// Whether all ranks are there with which it has begun a first message. Until then nothing of a call is queued.
  [[nodiscard]] bool is_connected() {
    std::erase_if(connecting,
                  [&](auto const& each) { return of->sending.contains(each) && of->receiving.contains(each); });
    return connecting.empty();
  }
};

inline std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

namespace comm = trireme::comm;
namespace reduction = trireme::reduction;

template <class T>
void combine(comm::detail::cuda_reduction op, std::span<void* const> outputs, std::span<void const* const> terms,
             std::int64_t count, int divisor) {
  using enum comm::detail::cuda_reduction;
  if (op == max) return comm::detail::combine<reduction::max, T>(outputs, terms, count, divisor);
  if (op == min) return comm::detail::combine<reduction::min, T>(outputs, terms, count, divisor);
  if (op == pairwise) return comm::detail::combine<reduction::pairwise, T>(outputs, terms, count, divisor);
  if constexpr (!std::is_integral_v<T>)
    if (op == mean) return comm::detail::combine<reduction::mean, T>(outputs, terms, count, divisor);
  comm::detail::combine<reduction::sum, T>(outputs, terms, count, divisor);
}
inline void combine(comm::detail::cuda_element type, comm::detail::cuda_reduction op, std::span<void* const> outputs,
                    std::span<void const* const> terms, std::int64_t count, int divisor) {
  using enum comm::detail::cuda_element;
  switch (type) {
    case f64:
      return combine<double>(op, outputs, terms, count, divisor);
    case f32:
      return combine<float>(op, outputs, terms, count, divisor);
    case bf16:
      return combine<trireme::bfloat16>(op, outputs, terms, count, divisor);
    case f16:
      return combine<trireme::float16>(op, outputs, terms, count, divisor);
    case i64:
      return combine<std::int64_t>(op, outputs, terms, count, divisor);
    case u64:
      return combine<std::uint64_t>(op, outputs, terms, count, divisor);
    case i32:
      return combine<std::int32_t>(op, outputs, terms, count, divisor);
    case u32:
      return combine<std::uint32_t>(op, outputs, terms, count, divisor);
    case i8:
      return combine<std::int8_t>(op, outputs, terms, count, divisor);
    case u8:
      return combine<std::uint8_t>(op, outputs, terms, count, divisor);
  }
}
inline void combine(ncclDataType_t type, ncclRedOp_t op, void* output, std::span<void const* const> terms,
                    std::size_t count, int divisor) {
  using enum comm::detail::cuda_element;
  constexpr comm::detail::cuda_element types[] = {i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16};
  using comm::detail::cuda_reduction;
  auto const how = op == ncclMax   ? cuda_reduction::max
                   : op == ncclMin ? cuda_reduction::min
                   : op == ncclAvg ? cuda_reduction::mean
                                   : cuda_reduction::sum;
  combine(types[type], how, {&output, 1}, terms, static_cast<std::int64_t>(count), divisor);
}

enum collective : int { all_reduce, reduce_scatter, reduce, all_gather, broadcast };

/// The last rank to come does the work of all.
inline void carry_out(meeting& all, int size) {
  auto const first = *all.offers.front();
  auto const bytes = first.count * size_of(first.type);
  std::vector<void const*> terms;
  for (auto const& each : all.offers) {
    if (each->kind != first.kind || each->count != first.count) std::abort();  // the test's mistake
    terms.push_back(each->from);
  }
  if (first.kind == broadcast) {
    for (auto const& each : all.offers)
      if (each->to != terms[static_cast<std::size_t>(first.root)])
        std::memmove(each->to, terms[static_cast<std::size_t>(first.root)], bytes);
    return;
  }
  if (first.kind == all_gather) {
    for (auto const& each : all.offers)
      for (int rank = 0; rank < size; ++rank)
        std::memmove(static_cast<char*>(each->to) + static_cast<std::size_t>(rank) * bytes,
                     terms[static_cast<std::size_t>(rank)], bytes);
    return;
  }
  auto const total = first.count * (first.kind == reduce_scatter ? static_cast<std::size_t>(size) : 1);
  std::vector<char> sum(total * size_of(first.type) + 1);
  combine(first.type, first.op, sum.data(), terms, total, size);
  for (int rank = 0; rank < size; ++rank) {
    auto const& each = *all.offers[static_cast<std::size_t>(rank)];
    if (first.kind == reduce && rank != first.root) continue;
    auto const from = first.kind == reduce_scatter ? static_cast<std::size_t>(rank) * bytes : 0;
    if (bytes > 0) std::memcpy(each.to, sum.data() + from, bytes);
  }
}

/// Queues one rank's part in a collective.
inline ncclResult_t enter(ncclComm_t handle, cudaStream_t on, offer const& own) {
  std::lock_guard const lock(world_lock());
  auto& me = *reinterpret_cast<communicator*>(handle);
  me.use(reinterpret_cast<stream*>(on));
  auto const number = me.calls++;
  auto given = std::make_shared<bool>(false);
  queue(*me.used, [of = me.of, rank = me.rank, number, own, given](bool needed) {
    auto& all = of->meetings[number];
    all.offers.resize(static_cast<std::size_t>(of->size));
    if (!*given) {
      all.offers[static_cast<std::size_t>(rank)] = std::make_unique<offer>(own);
      *given = true;
      if (++all.left == of->size) {
        carry_out(all, of->size);
        all.left = -of->size;
      }
    }
    if (all.left >= 0 && needed) of->need_others(rank);
    if (all.left >= 0) return false;
    if (++all.left == 0) of->meetings.erase(number);
    return true;
  });
  return ncclInProgress;
}

/// What a group has collected in this thread.
struct posted {
  communicator* at;
  stream* on;
  int peer;
  bool sent;
  offer what;
};
inline std::vector<posted>& group_of_thread() {
  thread_local std::vector<posted> all;
  return all;
}
inline ncclResult_t post(ncclComm_t handle, cudaStream_t on, int peer, bool sent, offer const& what) {
  reinterpret_cast<communicator*>(handle)->use(reinterpret_cast<stream*>(on));
  group_of_thread().push_back(
      {reinterpret_cast<communicator*>(handle), reinterpret_cast<stream*>(on), peer, sent, what});
  return ncclSuccess;
}
/// A group is one piece of work: it gives all that it sends, and then waits for what it receives to come and for what
/// it has sent to be taken.
inline void end_group() {
  std::lock_guard const lock(world_lock());
  auto const all = std::make_shared<std::vector<posted>>(std::move(group_of_thread()));
  group_of_thread().clear();
  if (all->empty()) return;
  auto const sent = std::make_shared<std::vector<std::shared_ptr<offer>>>();
  auto const begun = std::make_shared<bool>(false);
  auto const of = all->front().at->of;
  int const rank = all->front().at->rank;
  for (auto const& each : *all) {
    std::pair const between = each.sent ? std::pair(rank, each.peer) : std::pair(each.peer, rank);
    if ((each.sent ? of->sending : of->receiving).insert(between).second)
      all->front().at->connecting.push_back(between);
  }
  auto const pass = [all, sent, begun, of, rank] {
    if (!*begun)
      for (auto const& each : *all)
        if (each.sent) {
          sent->push_back(std::make_shared<offer>(each.what));
          of->mail[{rank, each.peer}].push_back(sent->back());
        }
    *begun = true;
    for (auto it = all->begin(); it != all->end();) {
      auto& box = of->mail[{it->peer, rank}];
      auto const come = box.empty() ? nullptr : box.front().lock();
      if (it->sent) {
        it = all->erase(it);
      } else if (come != nullptr) {
        if (come->count != it->what.count) std::abort();  // the test's mistake
        std::memcpy(it->what.to, come->from, it->what.count);
        come->kind = -2;  // taken
        box.pop_front();
        it = all->erase(it);
      } else {
        // Messages of one peer come in order, so that later ones of it wait too.
        break;
      }
    }
    for (auto const& each : *sent)
      if (each->kind != -2) return false;
    return all->empty();
  };
  queue(*all->front().on, [pass, of, rank](bool needed) {
    if (pass()) return true;
    if (!needed) return false;
    of->need_others(rank);
    return pass();
  });
}

}  // namespace stand_in
