// Trireme 0.1.0: trireme/comm/processes.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: ada74bafe815a294239d72c785c61587c3e885558806230bbe6120a5df5c8405
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/process_world.hpp"
#include "trireme/comm/rendezvous.hpp"
#include "trireme/comm/report.hpp"

// ---- trireme/comm/processes.hpp
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#ifndef TRIREME_COMM_DETAIL_PROCESS_RECOVERY_INCLUDED
#define TRIREME_COMM_DETAIL_PROCESS_RECOVERY_INCLUDED

// ---- trireme/comm/detail/process_recovery.hpp
#include <algorithm>
#include <vector>

#ifndef TRIREME_COMM_DETAIL_PROCESS_START_INCLUDED
#define TRIREME_COMM_DETAIL_PROCESS_START_INCLUDED

// ---- trireme/comm/detail/process_start.hpp
#ifndef TRIREME_COMM_DETAIL_NODE_SETUP_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_SETUP_INCLUDED

// ---- trireme/comm/detail/node_setup.hpp
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <bitset>
#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>

#ifndef TRIREME_COMM_DETAIL_NODE_ENGINE_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_ENGINE_INCLUDED

// ---- trireme/comm/detail/node_engine.hpp
#include <condition_variable>
#include <mutex>
#include <thread>

#ifndef TRIREME_COMM_DETAIL_NODE_PROGRESS_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_PROGRESS_INCLUDED

// ---- trireme/comm/detail/node_progress.hpp
#ifndef TRIREME_COMM_DETAIL_NODE_EXCHANGE_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_EXCHANGE_INCLUDED

// ---- trireme/comm/detail/node_exchange.hpp
#ifndef TRIREME_COMM_DETAIL_NODE_OPERATION_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_OPERATION_INCLUDED

// ---- trireme/comm/detail/node_operation.hpp
#include <array>
#include <atomic>

#ifndef TRIREME_COMM_DETAIL_NODE_COPY_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_COPY_INCLUDED

// ---- trireme/comm/detail/node_copy.hpp
#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace trireme::comm::detail {

/// From this size on what is copied does not stay in the caches anyway.
inline constexpr std::uint64_t streamed_bytes = 8 << 20;

/// Whether messages of so many bytes are copied past the caches.
[[nodiscard]] inline bool is_streamed(element_kernels const* elements, std::uint64_t bytes) noexcept {
  return bytes >= streamed_bytes && elements != nullptr && elements->copy == &space_kernels<host>::copy;
}

/// Copies past the caches, so that the old contents of `to` need not be read: a third less memory traffic.
inline void stream_copy(std::byte* to, std::byte const* from, std::size_t bytes) noexcept {
  if (to == from) return;
#if defined(__SSE2__)
  auto const skip = std::min<std::size_t>(bytes, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
  std::memmove(to, from, skip);
  std::size_t at = skip;
  for (; at + 64 <= bytes; at += 64)
    for (std::size_t part = at; part < at + 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<__m128i const*>(from + part)));
  std::memmove(to + at, from + at, bytes - at);
  _mm_sfence();
#else
  std::memmove(to, from, bytes);
#endif
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_COPY_INCLUDED

// ---- trireme/comm/detail/node_operation.hpp (goes on)
#ifndef TRIREME_COMM_DETAIL_NODE_LAUNCH_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_LAUNCH_INCLUDED

// ---- trireme/comm/detail/node_launch.hpp
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef TRIREME_COMM_DETAIL_NODE_LAYOUT_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_LAYOUT_INCLUDED

// ---- trireme/comm/detail/node_layout.hpp
#include <new>

namespace trireme::comm::detail {

// What lies in the memory file of each rank: one header, then a heap. The boards of its groups are blocks of the heap.

inline constexpr int node_most_ranks = 256;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "processes share these words");

/// The beginning of a rank's memory file.
struct node_header {
  static constexpr std::size_t bytes = 1 << 16;  ///< where the heap begins
  static constexpr std::size_t sentence_bytes = 2048;

  std::uint64_t token[2] = {};  ///< proves that a peer has opened the right file
  /// Whoever sleeps in this rank's process sleeps on `bell`; others ring it if there are sleepers.
  alignas(64) std::atomic<std::uint32_t> bell{0};
  std::atomic<std::uint32_t> sleepers{0};
  /// It reads or writes memory of other ranks at this moment.
  alignas(64) std::atomic<std::uint32_t> inside{0};
  /// In the file of rank 0: 1 + the rank whose sentence says why the launch has failed.
  alignas(64) std::atomic<std::uint32_t> failure{0};
  /// This rank's process ends with an error, and asks who reports it.
  std::atomic<std::uint32_t> ends{0};
  /// In the file of rank 0: some rank reports.
  std::atomic<std::uint32_t> reported{0};
  /// Whether this rank's process goes on after the failure, in another launch.
  enum decision : std::uint32_t { unsaid, yes, given_up };
  std::atomic<std::uint32_t> goes_on{unsaid};
  /// Who goes on, as this rank has settled it for those above it: a byte a rank, valid once `settled` is 1.
  std::atomic<std::uint32_t> settled{0};
  std::uint8_t those_left[node_most_ranks] = {};
  char sentence[sentence_bytes] = {};
};
static_assert(sizeof(node_header) <= node_header::bytes);

/// One rank's announcement of one collective of a group, written by that rank alone.
struct alignas(64) node_posting {
  static constexpr std::size_t value_bytes = 1024;  ///< messages up to this size travel in it
  static constexpr std::uint32_t reachable = 1;     ///< the others may work in this rank's memory
  static constexpr std::uint32_t writable = 2;      ///< in broadcast: also where the values go
  static constexpr std::uint32_t untouchable = 4;   ///< no memory at all: only synchronise

  struct places {
    std::uint64_t from;  ///< offsets in the poster's file
    std::uint64_t to;
    std::uint32_t flags;
  };

  std::atomic<std::uint64_t> word{0};  ///< number * 4 + (1: arrived, 2: this rank's share is done)
  call what;
  union {
    places memory;
    std::byte first[32];
  };
  alignas(8) std::byte more[sizeof(std::int64_t) * node_most_ranks];  ///< longer values, or the counts of a ragged call

  node_posting() noexcept : memory{} {}
  [[nodiscard]] std::byte* values(std::size_t bytes) noexcept { return bytes <= sizeof(first) ? first : more; }
};
static_assert(offsetof(node_posting, more) == 64);

/// The messages of one rank to another: a ring of slots, which the sender fills and the receiver empties.
struct alignas(64) node_channel {
  static constexpr std::uint64_t slots = 4;
  static constexpr std::size_t slot_bytes = 1 << 18;

  struct label {
    std::uint64_t place;  ///< offset in the sender's file, if the receiver reads there
    std::int64_t count;
    dtype type;
    bool direct;
  };
  std::atomic<std::uint64_t> head{0};              ///< slots ever filled
  label labels[slots] = {};                        ///< of the messages that begin in the slots
  alignas(64) std::atomic<std::uint64_t> tail{0};  ///< slots ever emptied
};

/// One rank's part of one group. Behind it lie its staging slots, its channels to all ranks, and their slots.
struct node_board {
  static constexpr std::uint64_t ring = 64;
  static constexpr std::uint64_t slots = 4;
  /// All of them exceed a second-level cache, on purpose: lines still dirty there travel slowly to another core.
  static constexpr std::size_t slot_bytes = 1 << 18;

  alignas(64) std::atomic<std::uint64_t> unfinished{1};  ///< the lowest number that this rank has not finished
  std::atomic<std::uint32_t> left{0};                    ///< this rank has left the group
  alignas(64) std::atomic<std::uint32_t> leavers{0};     ///< ranks that will not look at this board any more
  /// Rounds of staged collectives, counted over all of them: copied in, reduced, copied out.
  alignas(64) std::atomic<std::uint64_t> filled{0};
  std::atomic<std::uint64_t> combined{0};
  std::atomic<std::uint64_t> drained{0};
  node_posting postings[ring];

  [[nodiscard]] node_posting& at(std::uint64_t number) noexcept { return postings[number % ring]; }
  [[nodiscard]] std::byte* slot(std::uint64_t round) noexcept {
    return reinterpret_cast<std::byte*>(this) + staging_at() + round % slots * slot_bytes;
  }
  [[nodiscard]] node_channel& channel(int to) noexcept {
    return reinterpret_cast<node_channel*>(reinterpret_cast<std::byte*>(this) + channels_at())[to];
  }
  [[nodiscard]] std::byte* channel_slot(int size, int to, std::uint64_t turn) noexcept {
    auto const which = static_cast<std::size_t>(to) * node_channel::slots + turn % node_channel::slots;
    return reinterpret_cast<std::byte*>(this) + channel_slots_at(size) + which * node_channel::slot_bytes;
  }

  [[nodiscard]] static constexpr std::size_t bytes(int size) noexcept {
    return channel_slots_at(size) + static_cast<std::size_t>(size) * node_channel::slots * node_channel::slot_bytes;
  }
  /// Makes a board of a group of `size` in a block of bytes(size).
  static node_board& make(void* block, int size) {
    auto* const board = ::new (block) node_board;
    for (int rank = 0; rank < size; ++rank) ::new (&board->channel(rank)) node_channel;
    return *board;
  }

 private:
  static constexpr std::size_t whole_pages(std::size_t bytes) noexcept { return (bytes + 4095) / 4096 * 4096; }
  static constexpr std::size_t staging_at() noexcept { return whole_pages(sizeof(node_board)); }
  static constexpr std::size_t channels_at() noexcept { return staging_at() + slots * slot_bytes; }
  static constexpr std::size_t channel_slots_at(int size) noexcept {
    return whole_pages(channels_at() + static_cast<std::size_t>(size) * sizeof(node_channel));
  }
};

[[nodiscard]] constexpr std::uint64_t node_arrived(std::uint64_t number) noexcept { return number * 4 + 1; }
[[nodiscard]] constexpr std::uint64_t node_shared(std::uint64_t number) noexcept { return number * 4 + 2; }

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_LAYOUT_INCLUDED

// ---- trireme/comm/detail/node_launch.hpp (goes on)
#ifndef TRIREME_COMM_DETAIL_NODE_MEMORY_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_MEMORY_INCLUDED

// ---- trireme/comm/detail/node_memory.hpp
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <map>

namespace trireme::comm::detail {

/// An open file, closed at the end.
class node_file {
 public:
  node_file() = default;
  explicit node_file(int number) noexcept : number_(number) {}
  node_file(node_file&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  node_file& operator=(node_file&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~node_file() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }

  /// Locks the first byte for as long as this process has the file open, however it ends.
  [[nodiscard]] bool lock() const noexcept {
    auto wish = first_byte();
    return ::fcntl(number_, F_OFD_SETLK, &wish) == 0;
  }
  /// Whether somebody else has the first byte locked. (If that cannot be told, yes.)
  [[nodiscard]] bool is_locked() const noexcept {
    auto wish = first_byte();
    return ::fcntl(number_, F_OFD_GETLK, &wish) != 0 || wish.l_type != F_UNLCK;
  }

 private:
  static struct flock first_byte() noexcept {
    struct flock wish {};
    wish.l_type = F_WRLCK;
    wish.l_whence = SEEK_SET;
    wish.l_len = 1;
    return wish;
  }
  int number_ = -1;
};

/// Address space in which the memory files of all ranks lie side by side, so that a peer's address is one addition.
class node_map {
 public:
  static constexpr std::size_t huge_page = std::size_t{1} << 21;

  node_map() = default;
  node_map(node_map&& other) noexcept { swap(other); }
  node_map& operator=(node_map&& other) noexcept {
    swap(other);
    return *this;
  }
  ~node_map() {
    if (space_ != nullptr) ::munmap(space_, length_);
  }

  /// Reserves `size` times `stride` bytes, which must be a multiple of a huge page.
  [[nodiscard]] bool reserve(int size, std::size_t stride) noexcept {
    auto const length = static_cast<std::size_t>(size) * stride + huge_page;
    void* const space = ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return false;
    node_map fresh;
    fresh.space_ = space;
    fresh.length_ = length;
    auto const begin = (reinterpret_cast<std::uintptr_t>(space) + huge_page - 1) / huge_page * huge_page;
    fresh.base_ = static_cast<std::byte*>(space) + (begin - reinterpret_cast<std::uintptr_t>(space));
    fresh.stride_ = stride;
    swap(fresh);
    return true;
  }
  /// Maps `bytes` of a rank's file into its place.
  [[nodiscard]] bool place(int rank, node_file const& file, std::size_t bytes) noexcept {
    auto* const at = this->at(rank);
    if (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file.number(), 0) ==
        MAP_FAILED)
      return false;
    ::madvise(at, bytes, MADV_HUGEPAGE);  // only advice: fewer faults, larger steps for the prefetcher
    return true;
  }
  [[nodiscard]] std::byte* at(int rank) const noexcept { return base_ + static_cast<std::size_t>(rank) * stride_; }

 private:
  void swap(node_map& other) noexcept {
    std::swap(space_, other.space_);
    std::swap(length_, other.length_);
    std::swap(base_, other.base_);
    std::swap(stride_, other.stride_);
  }
  void* space_ = nullptr;
  std::size_t length_ = 0;
  std::byte* base_ = nullptr;
  std::size_t stride_ = 0;
};

/// The blocks of this rank's memory file. What is in use is known here alone; freed pages go back to the system.
class node_heap {
 public:
  node_heap(std::byte* base, std::size_t begin, std::size_t end, int file) : base_(base), end_(end), file_(file) {
    free_.emplace(begin, end - begin);
  }

  [[nodiscard]] bool contains(void const* address, std::size_t bytes) const noexcept {
    auto const at = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(base_);
    return at < end_ && bytes <= end_ - at;
  }
  /// The first hole that is large enough; null if there is none.
  [[nodiscard]] void* allocate(std::size_t bytes) {
    std::lock_guard const lock(mutex_);
    auto const need = whole(bytes);
    auto const grain = bytes >= node_map::huge_page ? node_map::huge_page : page;
    if (closed_ || need < bytes) return nullptr;
    for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
      auto const [from, length] = *hole;
      auto const at = (from + grain - 1) / grain * grain;
      if (at - from > length || length - (at - from) < need) continue;
      auto const behind = length - (at - from) - need;
      if (behind > 0) free_.emplace(at + need, behind);
      if (at == from)
        free_.erase(hole);
      else
        hole->second = at - from;
      return base_ + at;
    }
    return nullptr;
  }
  void deallocate(void* block, std::size_t bytes) noexcept {
    std::lock_guard const lock(mutex_);
    auto from = static_cast<std::size_t>(static_cast<std::byte*>(block) - base_);
    auto length = whole(bytes);
    ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                static_cast<off_t>(length));
    if (closed_) return;
    try {
      auto next = free_.lower_bound(from);
      if (next != free_.end() && from + length == next->first) {
        length += next->second;
        next = free_.erase(next);
      }
      if (next != free_.begin()) {
        auto& [before, before_length] = *std::prev(next);
        if (before + before_length == from) {
          before_length += length;
          return;
        }
      }
      free_.emplace_hint(next, from, length);
    } catch (...) {  // without memory for the note the block is lost, not its pages
    }
  }
  /// After a failure nothing is given out again: a rank that has not heard of it may still write.
  void close() noexcept {
    std::lock_guard const lock(mutex_);
    closed_ = true;
  }

 private:
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t whole(std::size_t bytes) noexcept { return (bytes + page - 1) / page * page; }

  std::byte* const base_;
  std::size_t const end_;
  int const file_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  ///< offset and length of each hole
  bool closed_ = false;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_MEMORY_INCLUDED

// ---- trireme/comm/detail/node_launch.hpp (goes on)
namespace trireme::comm::detail {

/// What this process shares with the other ranks of its machine: the memory of all, the failure, and the bells.
class node_launch {
 public:
  node_launch(std::string_view name, int own_rank, std::vector<node_file> files, node_map map, std::size_t bytes,
              bool core_each)
      : who(name),
        rank(own_rank),
        spins(core_each ? 300 : 10),
        patience(core_each ? std::chrono::microseconds(1000) : std::chrono::microseconds(200)),
        files_(std::move(files)),
        map_(std::move(map)),
        heap(map_.at(rank), node_header::bytes, bytes, files_[static_cast<std::size_t>(rank)].number()) {}

  std::string const who;  ///< "trireme::comm::mpi"
  int const rank;
  int const spins;                           ///< pauses before the first yield
  std::chrono::microseconds const patience;  ///< how long to yield before sleeping

 private:
  std::vector<node_file> files_;  // before the heap, which needs them
  node_map map_;

 public:
  node_heap heap;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(files_.size()); }
  [[nodiscard]] std::byte* base(int of) const noexcept { return map_.at(of); }
  [[nodiscard]] node_header& header(int of) const noexcept {
    return *std::launder(reinterpret_cast<node_header*>(map_.at(of)));
  }
  [[nodiscard]] node_header& mine() const noexcept { return header(rank); }
  [[nodiscard]] std::uint64_t offset(void const* address) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(map_.at(rank));
  }
  /// Whether the process of another rank has ended without having left. Asks the system.
  [[nodiscard]] bool is_dead(int of) const noexcept {
    return of != rank && !files_[static_cast<std::size_t>(of)].is_locked();
  }

  /// From now on ranks wait for each other only while the process lives that has started this one.
  void expect_launcher() noexcept { launcher_ = ::getppid(); }
  /// Whether it has ended, so that this process was given to another one.
  [[nodiscard]] bool is_orphaned() const noexcept { return launcher_ > 1 && ::getppid() != launcher_; }

  [[nodiscard]] bool failed() const noexcept { return header(0).failure.load() != 0; }
  /// Ends all waits of all ranks with `sentence`. Only the first one of the launch counts.
  void fail(std::string_view sentence) noexcept {
    std::lock_guard const lock(failing_);
    if (failed() || spoken_) return;
    spoken_ = true;
    auto const length = std::min(sentence.size(), node_header::sentence_bytes - 1);
    std::memcpy(mine().sentence, sentence.data(), length);
    mine().sentence[length] = '\0';
    std::uint32_t none = 0;
    header(0).failure.compare_exchange_strong(none, static_cast<std::uint32_t>(rank) + 1);
    for (int each = 0; each < size(); ++each) ring(header(each));
  }
  [[nodiscard]] std::string sentence() const {
    auto const speaker = static_cast<int>(header(0).failure.load()) - 1;
    return speaker < 0 || speaker >= size() ? std::string() : std::string(header(speaker).sentence);
  }
  /// After a failure: takes this rank's memory back, waiting a little until no other rank works in it any more.
  void settle() noexcept {
    heap.close();
    auto const end = clock::now() + std::chrono::seconds(1);
    for (int each = 0; each < size(); ++each)
      while (each != rank && header(each).inside.load() != 0 && !is_dead(each) && clock::now() < end)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  /// Whether this rank reports how the launch has failed: the lowest that comes here in time. It returns false when
  /// another has begun to, because launchers end the others as soon as one process has ended.
  [[nodiscard]] bool reports() noexcept {
    mine().ends.store(1);
    auto& reported = header(0).reported;
    auto const begin = clock::now();
    for (int each = 0; each < rank && reported.load() == 0;) {
      auto const limit = patience_with_reporters * (header(each).ends.load() == 0 ? 1 : 2);
      if (is_dead(each) || clock::now() - begin > limit)
        ++each;
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (reported.exchange(1) == 0) return true;
    std::this_thread::sleep_for(time_to_report);
    return false;
  }

  /// After a failure: the ranks that go on, the same list on all of them. Nothing if one neither does so nor has ended
  /// before the deadline; then nobody goes on, not even that one when it wakes up.
  [[nodiscard]] std::vector<int> survivors(std::chrono::milliseconds deadline) {
    auto const end = clock::now() + deadline;
    mine().goes_on.store(node_header::yes);
    auto const has_given_up = [&] {
      for (int each = 0; each < size(); ++each)
        if (header(each).goes_on.load() == node_header::given_up) return true;
      return false;
    };
    for (int each = 0; each < size(); ++each) {
      while (header(each).goes_on.load() == node_header::unsaid && !is_dead(each)) {
        if (clock::now() > end || has_given_up()) return give_up();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    auto const is_left = [&](int of) { return header(of).goes_on.load() == node_header::yes && !is_dead(of); };
    for (;;) {
      if (clock::now() > end || has_given_up()) return give_up();
      int lowest = 0;
      while (!is_left(lowest)) ++lowest;  // this rank at the latest
      auto& decides = header(lowest);
      if (lowest == rank) {
        for (int each = 0; each < size(); ++each)
          decides.those_left[static_cast<std::size_t>(each)] = is_left(each) ? 1 : 0;
        decides.settled.store(1);
      }
      if (decides.settled.load() != 0) {
        std::vector<int> all;
        for (int each = 0; each < size(); ++each)
          if (decides.those_left[static_cast<std::size_t>(each)] != 0) all.push_back(each);
        return all;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  /// Wakes whoever sleeps in that rank's process.
  static void ring(node_header& there) noexcept {
    if (there.sleepers.load() == 0) return;
    there.bell.fetch_add(1);
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&there.bell), FUTEX_WAKE, 0x7fff'ffff, nullptr, nullptr, 0);
  }
  /// Sleeps until somebody rings, unless `ready()`, which is asked after the bell has been armed.
  template <class Ready>
  void sleep(std::chrono::nanoseconds limit, Ready&& ready) noexcept(noexcept(ready())) {
    auto& here = mine();
    struct sleeper {
      node_header& here;
      explicit sleeper(node_header& header) noexcept : here(header) { here.sleepers.fetch_add(1); }
      ~sleeper() { here.sleepers.fetch_sub(1); }
    } const asleep(here);
    auto const value = here.bell.load();
    if (ready()) return;
    timespec const time{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&here.bell), FUTEX_WAIT, value, &time, nullptr, 0);
  }

  /// A block for this rank's board in a group of `size`; null if there is no memory left.
  [[nodiscard]] node_board* make_board(int size) {
    {
      std::lock_guard const lock(retiring_);
      sweep();
    }
    void* const block = heap.allocate(node_board::bytes(size));
    return block == nullptr ? nullptr : &node_board::make(block, size);
  }
  /// This rank has left the group of the board; its memory is free once the others have left too.
  void retire(node_board& board, int size) {
    std::lock_guard const lock(retiring_);
    retired_.emplace_back(&board, size);
  }

 private:
  [[nodiscard]] std::vector<int> give_up() noexcept {
    mine().goes_on.store(node_header::given_up);
    return {};
  }
  void sweep() noexcept {
    std::erase_if(retired_, [this](auto const& each) {
      if (each.first->leavers.load() < static_cast<std::uint32_t>(each.second)) return false;
      heap.deallocate(each.first, node_board::bytes(each.second));
      return true;
    });
  }

  pid_t launcher_ = 0;
  std::mutex failing_;
  bool spoken_ = false;
  std::mutex retiring_;
  std::vector<std::pair<node_board*, int>> retired_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_LAUNCH_INCLUDED

// ---- trireme/comm/detail/node_operation.hpp (goes on)
namespace trireme::comm::detail {

/// The ranks of one communicator, as one of them sees it.
struct node_group {
  /// Messages to one rank and from it, numbered as they were asked for, and how many have been seen through.
  struct pair_state {
    std::uint64_t sends = 0, receives = 0;
    std::uint64_t sent = 0, received = 0;
  };

  std::shared_ptr<node_launch> launch;
  std::vector<int> members;  ///< their ranks in the launch, by rank in the group
  int rank = 0;
  std::chrono::milliseconds deadline{};
  std::vector<node_board*> boards;
  std::vector<node_header*> headers;

  std::uint64_t next = 1;      ///< the number of the next collective
  std::uint64_t decided = 0;   ///< up to here it is known how each collective goes about its work
  std::uint64_t reusable = 1;  ///< postings below it are free: every rank has finished with them
  std::uint64_t rounds = 0;    ///< rounds of the staged collectives that are decided
  std::array<std::uint64_t, node_board::ring> done{};
  std::vector<pair_state> pairs;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members.size()); }
  [[nodiscard]] node_board& board(int of) const noexcept { return *boards[static_cast<std::size_t>(of)]; }
  [[nodiscard]] node_board& mine() const noexcept { return board(rank); }
  [[nodiscard]] int world_rank(int of) const noexcept { return members[static_cast<std::size_t>(of)]; }
  /// What lies at an offset of another rank's memory.
  [[nodiscard]] std::byte* at(int of, std::uint64_t offset) const noexcept {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(launch->base(world_rank(of))) + offset);
  }

  /// Called after every change that others may wait for.
  void ring() const noexcept {
    for (int each = 0; each < size(); ++each)
      if (each != rank) node_launch::ring(*headers[static_cast<std::size_t>(each)]);
  }
  [[nodiscard]] std::uint64_t lowest_unfinished() const noexcept {
    auto low = board(0).unfinished.load();
    for (int each = 1; each < size(); ++each) low = std::min(low, board(each).unfinished.load());
    return low;
  }
  /// Collective `number` is finished, here.
  void finish(std::uint64_t number) noexcept {
    done[number % node_board::ring] = number;
    auto low = mine().unfinished.load(std::memory_order_relaxed);
    if (number != low) return;
    while (done[low % node_board::ring] == low) ++low;
    mine().unfinished.store(low);
  }
};

/// `count` elements from `first` on of the whole view that begins at `whole`.
struct node_segment {
  std::byte* whole = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// One rank's part in one collective or exchange. It advances when it is asked to:
///   posting -> arriving -> finished                           by value, or where there is nothing to touch
///                       -> sharing -> closing -> finished     directly in the memory of all
///                       -> staging -> finished                in pieces through the staging slots
///   exchanging -> finished
struct node_operation final : process_operation {
  enum class stage : std::uint8_t { posting, arriving, sharing, closing, staging, exchanging, finished };
  struct message {
    part what;
    std::uint64_t number = 0;  ///< among those of its pair and direction
    std::uint64_t moved = 0;   ///< bytes
    std::uint64_t target = 0;  ///< of the channel's tail, when the receiver has everything
    enum class state : std::uint8_t { waiting, moving, closing, finished } at = state::waiting;
  };

  node_group* where = nullptr;
  command it;
  std::vector<std::int64_t> counts;  ///< what it.counts refers to
  std::vector<part> parts;           ///< what it.parts refers to
  std::vector<message> messages;     ///< of an exchange
  std::uint64_t number = 0;
  std::atomic<stage> at{stage::finished};
  bool by_value = false;
  bool for_all = false;    ///< a broadcast in which each rank copies a slice for all
  bool streams = false;    ///< moves so much that it goes past the caches
  int cursor = 0;          ///< ranks below it have been seen at the present stage
  std::int64_t moved = 0;  ///< of this rank's share of direct work: elements, of the rank at `cursor`
  std::int64_t chunk = 0;  ///< elements a round
  std::uint64_t base = 0;  ///< the number of the first round
  std::uint64_t rounds = 0;
  std::uint32_t polls = 0;
  clock::time_point since{};
  clock::time_point next_look{};
  bool told_late = false;
  node_operation* previous = nullptr;  ///< pending ones only
  node_operation* next = nullptr;

  [[nodiscard]] bool finished() const noexcept { return at.load(std::memory_order_acquire) == stage::finished; }
  [[nodiscard]] stage now() const noexcept { return at.load(std::memory_order_relaxed); }
  void become(stage next_stage) noexcept { at.store(next_stage, std::memory_order_release); }
  [[nodiscard]] node_launch& launch() const noexcept { return *where->launch; }
  [[nodiscard]] node_posting& posting(int of) const noexcept { return where->board(of).at(number); }
  [[nodiscard]] call const& what() const noexcept { return it.what; }
  [[nodiscard]] bool touches() const noexcept { return it.elements == nullptr || it.elements->touchable; }
  [[nodiscard]] std::int64_t bytes(std::int64_t count) const noexcept {
    return count * static_cast<std::int64_t>(it.element_bytes);
  }
  [[nodiscard]] std::byte* from() const noexcept { return static_cast<std::byte*>(const_cast<void*>(it.from)); }
  [[nodiscard]] std::byte* to() const noexcept { return static_cast<std::byte*>(it.to); }
  [[nodiscard]] bool is_root() const noexcept { return where->rank == it.what.root; }
  [[nodiscard]] bool is_ragged() const noexcept { return it.what.shape != 0; }
  [[nodiscard]] std::int64_t each() const noexcept { return it.what.count / where->size(); }
};

[[nodiscard]] inline geometry geometry_of(node_operation const& op) noexcept {
  return {op.what(), op.it.element_bytes, op.where->size(), op.counts};
}
/// What a collective that only moves elements does.
[[nodiscard]] inline move const& move_of(node_operation const& op) noexcept { return row_of(op.what().kind).moves[0]; }
[[nodiscard]] inline bool has_parts(node_operation const& op) noexcept {
  return op.is_ragged() && op.what().kind == collective::all_to_all;
}

/// What this rank gives to `rank`, if the collective only moves elements.
[[nodiscard]] inline node_segment outgoing(node_operation const& op, int rank) noexcept {
  if (has_parts(op)) {
    auto const& sent = op.parts[static_cast<std::size_t>(rank)];
    return {sent.address, 0, sent.count};
  }
  auto const given = geometry_of(op).given(move_of(op), op.where->rank, rank);
  return {op.from(), given.first, given.count};
}

/// Where this rank wants what `rank` gives, if the collective only moves elements.
[[nodiscard]] inline node_segment incoming(node_operation const& op, int rank) noexcept {
  if (has_parts(op)) {
    auto const& received = op.parts[static_cast<std::size_t>(op.where->size() + rank)];
    return {received.address, 0, received.count};
  }
  auto const taken = geometry_of(op).taken(move_of(op), rank, op.where->rank);
  return {op.to(), taken.first, taken.count};
}

/// Bytes of what a rank posts if the values travel with the announcement: the same number on every rank.
[[nodiscard]] inline std::int64_t value_bytes(node_operation const& op) noexcept {
  auto const given = move_of(op).given;
  if (given == piece::whole) return op.bytes(op.what().count);
  auto const where = geometry_of(op);
  return op.bytes(given == piece::of_giver ? where.largest() : where.all());
}

/// "all_reduce(F32, 4 elements, sum) number 12"
[[nodiscard]] inline std::string describe(node_operation const& op) {
  if (op.what().kind == collective::exchange) return to_string(op.what());
  return text(to_string(op.what()), " number ", op.number);
}

/// Copies elements [first, first + most) of those that belong into `to`, as far as there are any; how many.
inline std::int64_t copied(node_operation const& op, node_segment const& to, std::byte const* from, std::int64_t first,
                           std::int64_t most) {
  auto const count = std::clamp<std::int64_t>(to.count - first, 0, most);
  if (count <= 0) return count;
  auto const bytes = static_cast<std::size_t>(op.bytes(count));
  auto* const at = to.whole + op.bytes(to.first + first);
  if (op.streams)
    stream_copy(at, from, bytes);
  else
    op.it.elements->copy(at, from, bytes);
  return count;
}

/// Sets up what a command becomes. Its spans are copied; nothing is announced yet.
inline void prepare(node_operation& op, node_group& where, command const& it) {
  op.where = &where;
  op.it = it;
  op.counts.assign(it.counts.begin(), it.counts.end());
  op.parts.assign(it.parts.begin(), it.parts.end());
  op.cursor = 0;
  op.moved = 0;
  op.rounds = 0;
  op.polls = 0;
  op.for_all = op.told_late = false;
  op.since = op.next_look = {};
  if (it.what.kind == collective::exchange) {
    op.number = 0;
    op.messages.clear();
    for (auto const& each : op.parts) {
      auto& pair = where.pairs[static_cast<std::size_t>(each.peer)];
      op.messages.push_back({each, each.sent ? pair.sends++ : pair.receives++});
    }
    op.become(node_operation::stage::exchanging);
    return;
  }
  op.number = where.next++;
  op.by_value = op.touches() && !has_parts(op) && value_bytes(op) <= std::int64_t{node_posting::value_bytes};
  op.it.what.by_value = op.by_value;
  auto moves = op.bytes(it.what.count);
  for (auto const& each : op.parts) moves += op.bytes(each.count);
  op.streams = op.it.what.op == reduction_kind::none && is_streamed(it.elements, static_cast<std::uint64_t>(moves));
  op.become(node_operation::stage::posting);
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_OPERATION_INCLUDED

// ---- trireme/comm/detail/node_exchange.hpp (goes on)
namespace trireme::comm::detail {

// Messages between two ranks: the sender fills slots of its channel, the receiver empties them. Large messages in
// memory that the receiver reaches take one slot, which says where they are; it reads them there.

[[nodiscard]] inline std::uint64_t bytes_of(node_operation const& op, part const& it) noexcept {
  return op.touches() ? static_cast<std::uint64_t>(it.count) * size_of(it.type) : 0;
}

inline bool send_step(node_operation& op, node_operation::message& it) {
  using enum node_operation::message::state;
  auto& where = *op.where;
  auto& pair = where.pairs[static_cast<std::size_t>(it.what.peer)];
  auto& channel = where.mine().channel(it.what.peer);
  if (it.at == closing) {
    if (channel.tail.load() < it.target) return false;
    it.at = finished;
    return true;
  }
  auto const head = channel.head.load(std::memory_order_relaxed);
  if (pair.sent != it.number || head - channel.tail.load() >= node_channel::slots) return false;
  auto const bytes = bytes_of(op, it.what);
  if (it.at == waiting) {
    auto& label = channel.labels[head % node_channel::slots];
    label = {where.launch->offset(it.what.address), it.what.count, it.what.type,
             it.what.peer == where.rank || (bytes > 0 && where.launch->heap.contains(it.what.address, bytes))};
    if (label.direct || bytes == 0) it.moved = bytes;
    it.at = moving;
  }
  auto const count = std::min<std::uint64_t>(bytes - it.moved, node_channel::slot_bytes);
  if (count > 0)
    op.it.elements->copy(where.mine().channel_slot(where.size(), it.what.peer, head), it.what.address + it.moved,
                         count);
  it.moved += count;
  if (it.moved == bytes) {
    it.at = closing;
    it.target = head + 1;
    ++pair.sent;
  }
  channel.head.store(head + 1);
  return true;
}

inline bool receive_step(node_operation& op, node_operation::message& it) {
  using enum node_operation::message::state;
  auto& where = *op.where;
  auto& pair = where.pairs[static_cast<std::size_t>(it.what.peer)];
  auto& channel = where.board(it.what.peer).channel(where.rank);
  auto const tail = channel.tail.load(std::memory_order_relaxed);
  if (pair.received != it.number || channel.head.load() == tail) return false;
  auto const bytes = bytes_of(op, it.what);
  auto const& label = channel.labels[tail % node_channel::slots];
  if (it.at == waiting) {
    if (label.type != it.what.type || label.count != it.what.count) {
      op.launch().fail(text(
          op.launch().who, ": exchange: message number ", it.number + 1, " from rank ", where.world_rank(it.what.peer),
          " to rank ", where.world_rank(where.rank), " differs: rank ", where.world_rank(it.what.peer), " sends ",
          label.count, " of ", trireme::name_of(label.type), ", rank ", where.world_rank(where.rank), " receives ",
          it.what.count, " of ", trireme::name_of(it.what.type), "; make the two sides name one type and count"));
      return false;
    }
    it.at = label.direct ? closing : moving;
  }
  bool const direct = it.at == closing;
  auto const most = std::uint64_t{direct ? 1U << 20 : node_channel::slot_bytes};
  auto const count = std::min<std::uint64_t>(bytes - it.moved, most);
  if (count > 0) {
    auto* const from = direct ? where.at(it.what.peer, label.place) + it.moved
                              : where.board(it.what.peer).channel_slot(where.size(), where.rank, tail);
    if (is_streamed(op.it.elements, bytes))
      stream_copy(it.what.address + it.moved, from, count);
    else
      op.it.elements->copy(it.what.address + it.moved, from, count);
  }
  it.moved += count;
  bool const over = it.moved == bytes;
  if (over) {
    it.at = finished;
    ++pair.received;
  }
  if (over || !direct) channel.tail.store(tail + 1);
  return true;
}

/// Moves what can be moved now; whether anything was.
inline bool exchange_step(node_operation& op) {
  bool any = false;
  bool open = false;
  for (auto& each : op.messages) {
    if (each.at == node_operation::message::state::finished) continue;
    any = (each.what.sent ? send_step(op, each) : receive_step(op, each)) || any;
    open = open || each.at != node_operation::message::state::finished;
  }
  if (any) op.where->ring();
  if (!open) op.become(node_operation::stage::finished);
  return any || !open;
}

/// Whether a message waits for its peer at this moment.
[[nodiscard]] inline bool awaits(node_operation const& op, node_operation::message const& it) noexcept {
  using enum node_operation::message::state;
  auto const& where = *op.where;
  if (it.at == finished) return false;
  if (!it.what.sent) {
    auto const& channel = where.board(it.what.peer).channel(where.rank);
    return channel.head.load() == channel.tail.load();
  }
  auto const& channel = where.mine().channel(it.what.peer);
  if (it.at == closing) return channel.tail.load() < it.target;
  return channel.head.load() - channel.tail.load() >= node_channel::slots;
}

/// A rank that gives more or less than another takes, in a ragged all_to_all, fails all.
[[nodiscard]] inline bool counts_agree(node_operation const& op) {
  auto const& where = *op.where;
  for (int rank = 0; rank < where.size(); ++rank) {
    auto const sent = reinterpret_cast<std::int64_t const*>(op.posting(rank).more)[where.rank];
    auto const wanted = op.parts[static_cast<std::size_t>(where.size() + rank)].count;
    if (sent == wanted) continue;
    op.launch().fail(text(op.launch().who, ": ", describe(op), ": rank ", where.world_rank(rank), " sends ", sent,
                          " elements to rank ", where.world_rank(where.rank), ", which expects ", wanted,
                          "; exchange the counts first"));
    return false;
  }
  return true;
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_EXCHANGE_INCLUDED

// ---- trireme/comm/detail/node_progress.hpp (goes on)
#ifndef TRIREME_COMM_DETAIL_NODE_PATHS_INCLUDED
#define TRIREME_COMM_DETAIL_NODE_PATHS_INCLUDED

// ---- trireme/comm/detail/node_paths.hpp
#include <span>

namespace trireme::comm::detail {

/// The addresses of one reduction.
struct node_terms {
  void const* terms[node_most_ranks];
  void* outputs[node_most_ranks];
  std::size_t output_count = 0;

  void add_output(void* address) noexcept { outputs[output_count++] = address; }
  void combine(node_operation const& op, std::int64_t count) const {
    if (count == 0 || output_count == 0) return;
    auto const size = static_cast<std::size_t>(op.where->size());
    op.it.elements->combine({outputs, output_count}, {terms, size}, count,
                            op.it.divisor != 0 ? op.it.divisor : op.where->size());
  }
};

// By value: every rank has posted what it gives, and forms its own result.

inline void take_values(node_operation const& op) {
  auto const& where = *op.where;
  auto const geometry = geometry_of(op);
  auto const& move = move_of(op);
  auto const bytes = static_cast<std::size_t>(value_bytes(op));
  auto const posted = [&](int rank) { return op.posting(rank).values(bytes); };
  if (move.folds) {
    if (!geometry.takes(move, where.rank)) return;
    auto const part =
        op.what().kind == collective::reduce_scatter ? geometry.owned(where.rank) : interval{0, op.what().count};
    node_terms all;
    for (int rank = 0; rank < where.size(); ++rank) all.terms[rank] = posted(rank) + op.bytes(part.first);
    all.add_output(op.to() + op.bytes(part.first));
    all.combine(op, part.count);
  } else if (geometry.of().count > 0) {
    for (int rank = 0; rank < where.size(); ++rank) {
      auto const skip = move.given == piece::of_taker ? geometry.given(move, rank, where.rank).first : 0;
      auto const to = incoming(op, rank);
      copied(op, to, posted(rank) + op.bytes(skip), 0, to.count);
    }
  } else if (bytes > 0) {  // split and duplicate collect what all ranks posted
    for (int rank = 0; rank < where.size(); ++rank)
      std::memcpy(op.to() + op.bytes(rank * op.what().count), posted(rank), bytes);
  }
}

/// What this rank posts by value.
inline void give_values(node_operation const& op) {
  auto const geometry = geometry_of(op);
  auto const& move = move_of(op);
  if (!geometry.gives(move, op.where->rank)) return;
  auto const length = value_bytes(op);
  auto const own = move.given == piece::of_giver ? geometry.owned(op.where->rank) : interval{0, 0};
  auto const bytes = move.given == piece::of_giver ? op.bytes(own.count) : length;
  if (bytes > 0)
    std::memcpy(op.posting(op.where->rank).values(static_cast<std::size_t>(length)), op.from() + op.bytes(own.first),
                static_cast<std::size_t>(bytes));
}

// Direct: each rank does a share of the work in the memory of all.

/// Elements that are worked on in one go; between them others of this process may take their turn.
inline constexpr std::int64_t direct_bytes = 1 << 20;

[[nodiscard]] inline std::byte* from_of(node_operation const& op, int rank) noexcept {
  return op.where->at(rank, op.posting(rank).memory.from);
}
[[nodiscard]] inline std::byte* to_of(node_operation const& op, int rank) noexcept {
  return op.where->at(rank, op.posting(rank).memory.to);
}

/// Combines the next elements of this rank's slice; true at its end.
inline bool combine_directly(node_operation& op) {
  auto const& where = *op.where;
  bool const scatters = op.what().kind == collective::reduce_scatter;
  auto const own = scatters ? interval{where.rank * op.each(), op.each()}
                            : slice_of(op.what().count, op.it.element_bytes, where.rank, where.size());
  auto const most = direct_bytes / static_cast<std::int64_t>(op.it.element_bytes);
  auto const count = std::min(own.count - op.moved, most);
  auto const at = op.bytes(own.first + op.moved);
  node_terms all;
  for (int rank = 0; rank < where.size(); ++rank) {
    all.terms[rank] = from_of(op, rank) + at;
    if (op.what().kind == collective::all_reduce) all.add_output(to_of(op, rank) + at);
  }
  if (scatters) all.add_output(op.to() + at);
  if (op.what().kind == collective::reduce) all.add_output(to_of(op, op.what().root) + at);
  all.combine(op, count);
  op.moved += count;
  return op.moved == own.count;
}

/// Where in the memory of `rank` that lies which it gives to this one.
[[nodiscard]] inline std::byte const* source_at(node_operation const& op, int rank) noexcept {
  auto const own = op.where->rank;
  if (!has_parts(op)) return from_of(op, rank) + op.bytes(geometry_of(op).given(move_of(op), rank, own).first);
  auto const* const sent = reinterpret_cast<std::int64_t const*>(op.posting(rank).more);
  std::int64_t first = 0;
  for (int below = 0; below < own; ++below) first += sent[below];
  return from_of(op, rank) + op.bytes(first);
}

/// Copies the next elements of what this rank has to copy; true when there are none left.
inline bool move_directly(node_operation& op) {
  auto const& where = *op.where;
  auto const most = direct_bytes / static_cast<std::int64_t>(op.it.element_bytes);
  auto const step = [&](node_segment const& to, std::byte const* from) {
    op.moved += copied(op, to, from + op.bytes(op.moved), op.moved, most);
    if (op.moved < to.count) return false;
    op.moved = 0;
    ++op.cursor;
    return op.cursor == where.size();
  };
  auto const kind = op.what().kind;
  if (kind == collective::gather) {  // into the root's memory, so that all work
    op.cursor = where.size() - 1;
    return step({to_of(op, op.what().root), where.rank * op.what().count, op.what().count}, op.from());
  }
  if (kind == collective::broadcast && op.for_all) {  // everybody's: each rank copies a slice for all
    auto const part = slice_of(op.what().count, op.it.element_bytes, where.rank, where.size());
    if (op.cursor == op.what().root) return ++op.cursor == where.size();
    return step({to_of(op, op.cursor), part.first, part.count}, from_of(op, op.what().root) + op.bytes(part.first));
  }
  // Others first: rank r begins with what comes from r + 1, so that not all read from one.
  auto const rank = (where.rank + 1 + op.cursor) % where.size();
  auto const to = incoming(op, rank);
  return step(to, to.count == 0 ? nullptr : source_at(op, rank));
}

inline bool work_directly(node_operation& op) { return move_of(op).folds ? combine_directly(op) : move_directly(op); }

// Staged: in rounds, each of which copies a piece of what others need into this rank's slot, reduces this rank's part
// of the pieces of all, and copies results out of the slots of the others.

/// How many elements one round takes: of the whole view, or of what one rank gives to each other.
[[nodiscard]] inline std::int64_t staged_chunk(node_operation const& op) noexcept {
  bool const sliced = move_of(op).given == piece::of_taker && op.what().kind != collective::all_reduce;
  auto const line = static_cast<std::int64_t>(64 / op.it.element_bytes);
  auto const fits = static_cast<std::int64_t>(node_board::slot_bytes / op.it.element_bytes);
  return fits / (sliced ? op.where->size() : 1) / line * line;
}

/// How many rounds it takes; every rank finds the same number.
[[nodiscard]] inline std::uint64_t staged_rounds(node_operation const& op) noexcept {
  std::int64_t most = row_of(op.what().kind).into == cut::equal ? geometry_of(op).largest() : op.what().count;
  for (int rank = 0; has_parts(op) && rank < op.where->size(); ++rank) {
    auto const* const sent = reinterpret_cast<std::int64_t const*>(op.posting(rank).more);
    most = std::max(most, *std::max_element(sent, sent + op.where->size()));
  }
  return static_cast<std::uint64_t>((most + op.chunk - 1) / op.chunk);
}

inline void fill_slot(node_operation const& op, std::uint64_t round) {
  auto const& where = *op.where;
  auto* const slot = where.mine().slot(op.base + round);
  auto const first = static_cast<std::int64_t>(round) * op.chunk;
  auto const copy = [&](std::int64_t at, std::byte const* from, std::int64_t count) {
    if (count > 0) op.it.elements->copy(slot + op.bytes(at), from, static_cast<std::size_t>(op.bytes(count)));
  };
  auto const give = [&](std::int64_t at, node_segment const& all) {
    if (all.count > first) copy(at, all.whole + op.bytes(all.first + first), std::min(op.chunk, all.count - first));
  };
  auto const& move = move_of(op);
  if (move.folds && op.what().kind != collective::reduce_scatter) {  // all but what this rank reduces itself
    auto const count = std::min(op.chunk, op.what().count - first);
    auto const own = slice_of(count, op.it.element_bytes, where.rank, where.size());
    auto const behind = own.first + own.count;
    copy(0, op.from() + op.bytes(first), own.first);
    copy(behind, op.from() + op.bytes(first + behind), count - behind);
  } else if (move.given == piece::of_taker) {
    for (int rank = 0; rank < where.size(); ++rank)
      if (rank != where.rank) give(rank * op.chunk, outgoing(op, rank));
  } else {  // the same for everybody
    auto const to = move.takers == side::root ? op.what().root : (where.rank + 1) % where.size();
    if (to != where.rank) give(0, outgoing(op, to));
  }
}

inline void combine_slots(node_operation const& op, std::uint64_t round) {
  auto const& where = *op.where;
  auto const first = static_cast<std::int64_t>(round) * op.chunk;
  bool const scatters = op.what().kind == collective::reduce_scatter;
  auto const count = std::min(op.chunk, (scatters ? op.each() : op.what().count) - first);
  auto const own = scatters ? interval{where.rank * op.chunk, count}
                            : slice_of(count, op.it.element_bytes, where.rank, where.size());
  auto const at = op.bytes(scatters ? where.rank * op.each() + first : first + own.first);
  node_terms all;
  for (int rank = 0; rank < where.size(); ++rank)
    all.terms[rank] =
        rank == where.rank ? op.from() + at : where.board(rank).slot(op.base + round) + op.bytes(own.first);
  if (scatters || op.what().kind == collective::all_reduce || op.is_root()) all.add_output(op.to() + at);
  if (!scatters && !op.is_root()) all.add_output(where.mine().slot(op.base + round) + op.bytes(own.first));
  all.combine(op, own.count);
}

inline void drain_slots(node_operation const& op, std::uint64_t round) {
  auto const& where = *op.where;
  auto const first = static_cast<std::int64_t>(round) * op.chunk;
  auto const kind = op.what().kind;
  if (kind == collective::reduce_scatter || (kind == collective::reduce && !op.is_root())) return;
  bool const sliced = kind == collective::scatter || kind == collective::all_to_all;
  for (int step = 0; step < where.size(); ++step) {
    auto const rank = (where.rank + 1 + step) % where.size();
    auto* const slot = where.board(rank).slot(op.base + round);
    if (kind == collective::all_reduce || kind == collective::reduce) {
      auto const count = std::min(op.chunk, op.what().count - first);
      auto const theirs = slice_of(count, op.it.element_bytes, rank, where.size());
      if (rank != where.rank)
        copied(op, {op.to(), first + theirs.first, theirs.count}, slot + op.bytes(theirs.first), 0, theirs.count);
      continue;
    }
    auto const to = incoming(op, rank);
    if (to.count <= first) continue;
    auto const* from = slot + op.bytes(sliced ? where.rank * op.chunk : 0);
    if (rank == where.rank) {
      auto const own = outgoing(op, rank);
      from = own.whole + op.bytes(own.first + first);
    }
    copied(op, to, from, first, op.chunk);
  }
}

[[nodiscard]] inline bool combines(node_operation const& op) noexcept { return op.it.elements->combine != nullptr; }

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_PATHS_INCLUDED

// ---- trireme/comm/detail/node_progress.hpp (goes on)
namespace trireme::comm::detail {

enum class node_outcome : std::uint8_t { stuck, moved, finished };

/// Says to the other ranks, and to itself, that this one works in memory that is not its own; not after a failure.
class node_presence {
 public:
  explicit node_presence(node_launch& launch) noexcept : launch_(launch) {
    launch.mine().inside.store(1);
    allowed = !launch.failed();
  }
  node_presence(node_presence const&) = delete;
  node_presence& operator=(node_presence const&) = delete;
  ~node_presence() { launch_.mine().inside.store(0); }
  bool allowed = false;

 private:
  node_launch& launch_;
};

/// Whether the others may work in what this rank passes in, as far as that matters to the collective.
[[nodiscard]] inline std::uint32_t reach_of(node_operation const& op) noexcept {
  if (!op.touches()) return node_posting::reachable | node_posting::untouchable;
  auto const& heap = op.launch().heap;
  auto const holds = [&](void const* address, std::int64_t count) {
    return count == 0 || heap.contains(address, static_cast<std::size_t>(op.bytes(count)));
  };
  auto const count = op.what().count;
  auto const whole = count * op.where->size();
  auto const reachable = [&]() -> bool {
    switch (op.what().kind) {
      case collective::all_reduce:
        return holds(op.it.from, count) && holds(op.it.to, count);
      case collective::reduce:
        return holds(op.it.from, count) && (!op.is_root() || holds(op.it.to, count));
      case collective::gather:
        return !op.is_root() || holds(op.it.to, whole);
      case collective::scatter:
        return !op.is_root() || holds(op.it.from, whole);
      case collective::broadcast:
        return !op.is_root() || holds(op.it.from, count);
      case collective::all_to_all: {
        std::int64_t sum = count;
        for (int rank = 0; op.is_ragged() && rank < op.where->size(); ++rank)
          sum += op.parts[static_cast<std::size_t>(rank)].count;
        return holds(op.it.from, sum);
      }
      default:
        return holds(op.it.from, count);
    }
  };
  bool const writable = op.what().kind == collective::broadcast && holds(op.is_root() ? op.it.from : op.it.to, count);
  return (reachable() ? node_posting::reachable : 0U) | (writable ? node_posting::writable : 0U);
}

/// Whether this rank's slot for a round is free, and what has to be reduced before has been.
[[nodiscard]] inline bool may_fill(node_operation const& op, std::uint64_t round) noexcept {
  if (!combines(op) && op.where->mine().combined.load(std::memory_order_relaxed) != round) return false;
  for (int rank = 0; rank < op.where->size(); ++rank)
    if (op.where->board(rank).drained.load() + node_board::slots <= round) return false;
  return true;
}
inline void fill_round(node_operation const& op, std::uint64_t round) {
  fill_slot(op, round);
  auto& mine = op.where->mine();
  if (!combines(op)) mine.combined.store(op.base + round + 1);  // there is nothing to reduce
  mine.filled.store(op.base + round + 1);
}

/// Announces the collective; false while its posting is still in use for an earlier one.
inline bool post(node_operation& op) {
  auto& where = *op.where;
  if (op.number >= where.reusable + node_board::ring) {
    where.reusable = where.lowest_unfinished();
    if (op.number >= where.reusable + node_board::ring) return false;
  }
  auto& posting = where.mine().at(op.number);
  posting.what = op.it.what;
  if (op.by_value) {
    give_values(op);
  } else {
    auto const flags = reach_of(op);
    posting.memory = {op.launch().offset(op.it.from), op.launch().offset(op.it.to), flags};
    bool const ragged_pairs = op.what().kind == collective::all_to_all && op.is_ragged();
    if (ragged_pairs)
      for (int rank = 0; rank < where.size(); ++rank)
        reinterpret_cast<std::int64_t*>(posting.more)[rank] = op.parts[static_cast<std::size_t>(rank)].count;
    op.chunk = staged_chunk(op);
    // If it is going to be staged for sure, the first piece goes with the announcement.
    if ((flags & node_posting::reachable) == 0 && !ragged_pairs && where.decided + 1 == op.number &&
        where.mine().filled.load(std::memory_order_relaxed) == where.rounds && may_fill(op, where.rounds)) {
      op.base = where.rounds;
      fill_round(op, 0);
    }
  }
  posting.word.store(node_arrived(op.number));
  where.ring();
  op.become(node_operation::stage::arriving);
  return true;
}

/// Whether `rank` called the same; if not, the launch fails.
[[nodiscard]] inline bool agrees(node_operation const& op, int rank) {
  auto const& theirs = op.posting(rank).what;
  if (theirs == op.it.what || !asserts(assertion_level::normal)) return true;
  auto const other = op.where->world_rank(rank);
  auto const self = op.where->world_rank(op.where->rank);
  auto& launch = op.launch();
  launch.fail(other < self ? differing_calls(launch.who, op.number, other, theirs, self, op.it.what)
                           : differing_calls(launch.who, op.number, self, op.it.what, other, theirs));
  return false;
}

inline node_outcome finish(node_operation& op) noexcept {
  op.where->finish(op.number);
  op.become(node_operation::stage::finished);
  return node_outcome::finished;
}

/// All ranks have arrived: from their postings each of them sees how the work is done.
inline node_outcome decide(node_operation& op) {
  using enum node_operation::stage;
  auto& where = *op.where;
  if (where.decided + 1 != op.number) return node_outcome::stuck;
  op.cursor = 0;
  if (op.by_value) {
    take_values(op);
    ++where.decided;
    return finish(op);
  }
  auto flags = ~std::uint32_t{0};
  bool untouchable = false;
  for (int rank = 0; rank < where.size(); ++rank) {
    flags &= op.posting(rank).memory.flags;
    untouchable = untouchable || (op.posting(rank).memory.flags & node_posting::untouchable) != 0;
  }
  if (untouchable) {
    ++where.decided;
    return finish(op);
  }
  if (op.what().kind == collective::all_to_all && op.is_ragged() && !counts_agree(op)) return node_outcome::stuck;
  ++where.decided;
  if ((flags & node_posting::reachable) != 0) {
    op.for_all = (flags & node_posting::writable) != 0;
    op.become(sharing);
    return node_outcome::moved;
  }
  op.rounds = staged_rounds(op);
  op.base = where.rounds;
  where.rounds += op.rounds;
  if (op.rounds == 0) return finish(op);
  op.become(staging);
  return node_outcome::moved;
}

/// Whether a rank must stay until the others have done their share: not if nobody works in its memory.
[[nodiscard]] inline bool must_stay(node_operation const& op) noexcept {
  bool const rooted = op.what().root >= 0 && op.what().kind != collective::reduce && !op.for_all;
  return !rooted || op.is_root();
}

inline node_outcome share(node_operation& op) {
  auto& launch = op.launch();
  bool over = false;
  {
    node_presence const inside(launch);
    if (!inside.allowed) return node_outcome::stuck;
    over = work_directly(op);
  }
  if (!over) return node_outcome::moved;
  op.posting(op.where->rank).word.store(node_shared(op.number));
  op.where->ring();
  if (!must_stay(op)) return finish(op);
  op.cursor = 0;
  op.become(node_operation::stage::closing);
  return node_outcome::moved;
}

/// One step of one round: copies out what is ready first, so that pieces are still in the cache.
inline node_outcome stage_round(node_operation& op) {
  auto& where = *op.where;
  auto& mine = where.mine();
  auto const round_of = [&](std::atomic<std::uint64_t> const& done) {
    return done.load(std::memory_order_relaxed) - op.base;
  };
  auto const all_have = [&](std::atomic<std::uint64_t> node_board::*done, std::uint64_t round) {
    for (int rank = 0; rank < where.size(); ++rank)
      if ((where.board(rank).*done).load() <= op.base + round) return false;
    return true;
  };
  auto const said = [&](std::atomic<std::uint64_t>& done, std::uint64_t round) {
    done.store(op.base + round + 1);
    where.ring();
    return node_outcome::moved;
  };
  auto const drained = round_of(mine.drained);
  auto const combined = round_of(mine.combined);
  auto const filled = round_of(mine.filled);
  auto const last = op.rounds;
  if (drained < last && drained < combined && all_have(&node_board::combined, drained)) {
    drain_slots(op, drained);
    auto const out = said(mine.drained, drained);
    return drained + 1 == last ? finish(op) : out;
  }
  if (combined < last && combined < filled && all_have(&node_board::filled, combined)) {
    combine_slots(op, combined);
    return said(mine.combined, combined);
  }
  if (filled < last && may_fill(op, op.base + filled)) {
    fill_round(op, filled);
    where.ring();
    return node_outcome::moved;
  }
  return node_outcome::stuck;
}

/// Makes some of the progress that is possible now.
inline node_outcome advance(node_operation& op) {
  using enum node_operation::stage;
  auto& where = *op.where;
  switch (op.now()) {
    case posting:
      if (!post(op)) return node_outcome::stuck;
      [[fallthrough]];
    case arriving:
      for (; op.cursor < where.size(); ++op.cursor)
        if (op.posting(op.cursor).word.load() < node_arrived(op.number) || !agrees(op, op.cursor))
          return node_outcome::stuck;
      return decide(op);
    case sharing:
      return share(op);
    case closing:
      for (; op.cursor < where.size(); ++op.cursor)
        if (op.posting(op.cursor).word.load() < node_shared(op.number)) return node_outcome::stuck;
      return finish(op);
    case staging:
      return stage_round(op);
    case exchanging:
      if (!exchange_step(op)) return node_outcome::stuck;
      return op.finished() ? node_outcome::finished : node_outcome::moved;
    default:
      return node_outcome::finished;
  }
}

/// Whether `rank` is somebody whom `op` waits for.
[[nodiscard]] inline bool awaits(node_operation const& op, int rank) noexcept {
  using enum node_operation::stage;
  auto const& board = op.where->board(rank);
  switch (op.now()) {
    case posting:
      return board.unfinished.load() + node_board::ring <= op.number;
    case arriving:
      return op.posting(rank).word.load() < node_arrived(op.number);
    case closing:
      return op.posting(rank).word.load() < node_shared(op.number);
    case staging: {
      auto const& mine = op.where->mine();
      return board.filled.load() <= mine.combined.load() || board.combined.load() <= mine.drained.load() ||
             board.drained.load() + node_board::slots <= mine.filled.load();
    }
    case exchanging:
      return std::ranges::any_of(op.messages,
                                 [&](auto const& each) { return each.what.peer == rank && awaits(op, each); });
    default:
      return false;
  }
}

/// "rank 1" or "ranks 1, 3": those that `op` waits for and that are `such`, by their ranks in the launch.
template <class Such>
[[nodiscard]] std::string awaited_ranks(node_operation const& op, Such&& such) {
  std::string out;
  int count = 0;
  for (int rank = 0; rank < op.where->size(); ++rank) {
    // Such first: a rank that has left or died has announced everything it ever will.
    if (rank == op.where->rank || !such(rank) || !awaits(op, rank)) continue;
    out += text(count++ == 0 ? "" : ", ", op.where->world_rank(rank));
  }
  return count == 0 ? out : text(count == 1 ? "rank " : "ranks ", out);
}

/// Fails the launch if `op` can never finish, or has been waited for too long (if `since` is given).
inline void check_patience(node_operation& op, clock::time_point since) {
  auto& launch = op.launch();
  auto const now = clock::now();
  if (launch.failed() || op.finished()) return;  // who has left after it is not awaited
  auto const begin = [&] { return text(launch.who, ": ", describe(op)); };
  if (now >= op.next_look) {  // asking the system costs a microsecond a rank
    op.next_look = now + std::chrono::milliseconds(50);
    if (launch.is_orphaned())
      return launch.fail(text(begin(), " cannot finish, because what started rank ", launch.rank,
                              " (mpirun, or its daemon) has ended; start the job again"));
    auto const left = awaited_ranks(op, [&](int rank) { return op.where->board(rank).left.load() != 0; });
    if (!left.empty())
      return launch.fail(text(begin(), " cannot finish, because ", left,
                              " has left without calling it; make every rank call the same collectives"));
    auto const dead = awaited_ranks(op, [&](int rank) { return launch.is_dead(op.where->world_rank(rank)); });
    if (!dead.empty())
      return launch.fail(
          text(launch.who, ": ", dead, " has died; ", describe(op), " cannot finish; look at what ended it"));
  }
  if (since == clock::time_point{}) return;
  if (now - since <= op.where->deadline) {
    return tell_if_late(op.told_late, now - since, op.where->deadline, [&] {
      return late_call{launch.rank, describe(op), static_cast<std::uint64_t>(op.bytes(op.what().count)),
                       awaited_ranks(op, [](int) { return true; })};
    });
  }
  auto const missing = awaited_ranks(op, [](int) { return true; });
  if (missing.empty()) return;
  auto const stage = op.now();
  auto const offence = stage == node_operation::stage::arriving     ? ", which did not call it"
                       : stage == node_operation::stage::exchanging ? ", which did not take its part"
                                                                    : ", which did not finish its share";
  launch.fail(text(begin(), " waited ", to_string(op.where->deadline), " for ", missing, offence,
                   "; look at what is keeping it, or raise ", launch.who.substr(launch.who.find("comm::")),
                   "{.deadline}"));
}

/// Leaves an operation of a failed launch: from here on nobody works in this rank's memory.
[[noreturn]] inline void throw_failure(node_launch& launch, collective kind) {
  launch.settle();
  throw comm_error(launch.sentence(), {launch.rank, std::string(name_of(kind))});
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_PROGRESS_INCLUDED

// ---- trireme/comm/detail/node_engine.hpp (goes on)
namespace trireme::comm::detail {

/// Drives the operations of this process: whoever waits does it, else a helper thread, which begins with the first
/// asynchronous operation and sleeps while nothing is pending.
class node_driver {
 public:
  explicit node_driver(std::shared_ptr<node_launch> launch) : launch_(std::move(launch)) {}
  node_driver(node_driver const&) = delete;
  node_driver& operator=(node_driver const&) = delete;
  ~node_driver() {
    if (!helper_.joinable()) return;
    {
      turn const mine(*this);
      over_ = true;
    }
    work_.notify_all();
    node_launch::ring(launch_->mine());
    helper_.join();
  }

  [[nodiscard]] std::shared_ptr<node_launch> const& launch() const noexcept { return launch_; }

  /// Runs a command in the caller, in an operation that is used again.
  void run(node_operation& op, node_group& where, command const& it) {
    turn mine(*this);
    expect_unfailed(it.what.kind);
    prepare(op, where, it);
    drive(op, mine);
  }
  /// Starts the helper: from then on every call takes its turn.
  void expect_others() {
    if (!helper_.joinable()) helper_ = std::thread([this] { help(); });
  }
  [[nodiscard]] node_operation& start(node_group& where, command const& it) {
    expect_others();
    turn const mine(*this);
    expect_unfailed(it.what.kind);
    if (unused_ == nullptr) {
      owned_.push_back(std::make_unique<node_operation>());
      unused_ = owned_.back().get();
    }
    prepare(*unused_, where, it);
    auto& op = *unused_;
    unused_ = op.next;
    op.previous = newest_;
    op.next = nullptr;
    (newest_ == nullptr ? pending_ : newest_->next) = &op;
    newest_ = &op;
    if (op.now() == node_operation::stage::posting) static_cast<void>(post(op));
    if (idle_)
      work_.notify_all();
    else
      node_launch::ring(launch_->mine());  // it may sleep, waiting for others
    return op;
  }
  [[nodiscard]] bool test(node_operation& op) {
    if (op.finished()) return true;
    if (std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      advance(op);
      advance_pending();
      if (++op.polls % 256 == 0) {
        if (op.since == clock::time_point{}) op.since = clock::now();
        check_patience(op, op.since);
      }
    }
    if (op.finished()) return true;
    if (launch_->failed()) throw_failure(op);
    return false;
  }
  void wait(node_operation& op) {
    if (op.finished()) return;
    turn mine(*this);
    drive(op, mine);
  }
  void release(node_operation& op) noexcept {
    turn const mine(*this);
    op.become(node_operation::stage::finished);
    (op.previous == nullptr ? pending_ : op.previous->next) = op.next;
    (op.next == nullptr ? newest_ : op.next->previous) = op.previous;
    op.next = unused_;
    unused_ = &op;
  }

 private:
  /// The caller's turn to drive; the helper and other callers let it in after at most one step of an operation.
  class turn {
   public:
    explicit turn(node_driver& driver) : driver_(driver), shared_(driver.helper_.joinable()) { take(); }
    turn(turn const&) = delete;
    turn& operator=(turn const&) = delete;
    ~turn() { give(); }

    void take() {
      if (!shared_) return;
      driver_.wanted_.fetch_add(1);
      driver_.mutex_.lock();
      driver_.wanted_.fetch_sub(1);
    }
    void give() noexcept {
      if (shared_) driver_.mutex_.unlock();
    }
    /// Lets others in who wait.
    void pass() {
      if (!shared_ || driver_.wanted_.load(std::memory_order_relaxed) == 0) return;
      give();
      std::this_thread::yield();
      take();
    }

   private:
    node_driver& driver_;
    bool const shared_;
  };

  void expect_unfailed(collective kind) const {
    if (launch_->failed()) detail::throw_failure(*launch_, kind);
  }
  [[noreturn]] void throw_failure(node_operation const& op) const { detail::throw_failure(*launch_, op.what().kind); }

  bool advance_pending() {
    bool moved = false;
    for (auto* each = pending_; each != nullptr; each = each->next)
      if (!each->finished()) moved = advance(*each) != node_outcome::stuck || moved;
    return moved;
  }
  [[nodiscard]] bool is_busy() const noexcept {
    for (auto* each = pending_; each != nullptr; each = each->next)
      if (!each->finished()) return true;
    return false;
  }

  /// Spins, then yields, then sleeps until the operation is finished.
  void drive(node_operation& op, turn& mine) {
    for (int spin = 0; spin < launch_->spins; mine.pass()) {
      auto const outcome = advance(op);
      if (outcome == node_outcome::finished) return;
      if (outcome == node_outcome::moved || (pending_ != nullptr && advance_pending())) {
        spin = 0;
        continue;
      }
      ++spin;
      pause_core();
    }
    auto const since = clock::now();
    auto quiet = since;  // since when nothing has moved
    auto const step = [&] {
      auto const outcome = advance(op);
      return outcome == node_outcome::finished || advance_pending() || outcome == node_outcome::moved;
    };
    for (std::uint32_t round = 1; !op.finished(); ++round, mine.pass()) {
      bool const moved = step();
      if (op.finished()) return;
      if (launch_->failed()) throw_failure(op);
      if (moved) {
        quiet = {};
        continue;
      }
      if (round % 16 != 0) {
        std::this_thread::yield();
        continue;
      }
      auto const now = clock::now();
      if (quiet == clock::time_point{}) quiet = now;
      if (now - quiet > launch_->patience) {
        auto const left = op.where->deadline - (now - since);
        auto const longest = std::chrono::milliseconds(20);
        mine.give();
        launch_->sleep(std::clamp<std::chrono::nanoseconds>(left, std::chrono::microseconds(100), longest), [&] {
          mine.take();
          bool const ready = step() || launch_->failed();
          mine.give();
          return ready;
        });
        mine.take();
        round = 15;
      }
      check_patience(op, since);
    }
  }

  void help() {
    std::unique_lock lock(mutex_);
    int stuck = 0;
    while (!over_) {
      if (launch_->failed() || !is_busy()) {
        idle_ = true;
        work_.wait(lock, [this] { return over_ || (is_busy() && !launch_->failed()); });
        idle_ = false;
        stuck = 0;
        continue;
      }
      stuck = advance_pending() ? 0 : stuck + 1;
      if (stuck > 0 && stuck % 64 == 0)
        for (auto* each = pending_; each != nullptr; each = each->next) check_patience(*each, {});
      lock.unlock();
      if (wanted_.load() != 0) std::this_thread::yield();
      if (stuck > launch_->spins / 4 + 20) {
        launch_->sleep(std::chrono::milliseconds(20), [&] {
          lock.lock();
          bool const ready = over_ || launch_->failed() || advance_pending();
          lock.unlock();
          return ready;
        });
        stuck = 63;
      } else if (stuck > launch_->spins / 4) {
        std::this_thread::yield();
      } else if (stuck > 0) {
        pause_core();
      }
      lock.lock();
    }
  }

  std::shared_ptr<node_launch> const launch_;
  std::mutex mutex_;  ///< of everything below, once there is a helper thread
  std::condition_variable work_;
  std::atomic<int> wanted_{0};  ///< callers that wait for their turn
  bool over_ = false;
  bool idle_ = false;
  node_operation* pending_ = nullptr;  ///< asynchronous operations, oldest first
  node_operation* newest_ = nullptr;
  node_operation* unused_ = nullptr;
  std::vector<std::unique_ptr<node_operation>> owned_;
  std::thread helper_;
};

/// The engine of processes on one machine.
class node_engine final : public process_engine {
 public:
  /// `boards` are those of all members, each in the memory of its rank.
  node_engine(std::shared_ptr<node_driver> driver, std::vector<int> members, int rank,
              std::chrono::milliseconds deadline, std::vector<node_board*> boards)
      : driver_(std::move(driver)) {
    group_.launch = driver_->launch();
    group_.members = std::move(members);
    group_.rank = rank;
    group_.deadline = deadline;
    group_.boards = std::move(boards);
    for (int const member : group_.members) group_.headers.push_back(&group_.launch->header(member));
    group_.pairs.resize(group_.members.size());
  }
  ~node_engine() override {
    group_.mine().left.store(1);
    group_.ring();
    for (int each = 0; each < size(); ++each) group_.board(each).leavers.fetch_add(1);
    try {
      group_.launch->retire(group_.mine(), size());
    } catch (...) {  // without memory for the note the board stays until the launch ends
    }
  }

  [[nodiscard]] int rank() const noexcept override { return group_.rank; }
  [[nodiscard]] int size() const noexcept override { return group_.size(); }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept override { return group_.deadline; }

  void run(command const& it) override { driver_->run(blocking_, group_, it); }
  [[nodiscard]] process_operation& start(command const& it) override { return driver_->start(group_, it); }
  [[nodiscard]] bool test(process_operation& op) override { return driver_->test(static_cast<node_operation&>(op)); }
  void wait(process_operation& op) override { driver_->wait(static_cast<node_operation&>(op)); }
  void release(process_operation& op) noexcept override { driver_->release(static_cast<node_operation&>(op)); }

  [[nodiscard]] std::shared_ptr<process_engine> split(int color, int key) override {
    auto const wishes = collect(collective::split, color_and_key{color, key});
    return make_group(collective::split, ranks_of_color(wishes, color), group_.deadline);
  }
  [[nodiscard]] std::shared_ptr<process_engine> duplicate(std::chrono::milliseconds deadline) override {
    std::vector<int> all(static_cast<std::size_t>(size()));
    for (int each = 0; each < size(); ++each) all[static_cast<std::size_t>(each)] = each;
    return make_group(collective::duplicate, all, deadline);
  }

  void expect_several_callers() override { driver_->expect_others(); }
  void abandon(std::string const& sentence) noexcept override {
    try {
      group_.launch->fail(text(group_.launch->who, ": rank ", group_.launch->rank, " ended with an error: ", sentence));
    } catch (...) {  // without memory for a sentence, this
      group_.launch->fail("trireme::comm: a rank ended with an error");
    }
  }

  [[nodiscard]] bool failed() const noexcept override { return group_.launch->failed(); }
  [[nodiscard]] bool reports() noexcept override { return group_.launch->reports(); }

  [[nodiscard]] std::vector<int> survivors() override { return group_.launch->survivors(group_.deadline); }

  [[nodiscard]] void* allocate(std::size_t bytes) override { return group_.launch->heap.allocate(bytes); }
  void deallocate(void* block, std::size_t bytes) noexcept override { group_.launch->heap.deallocate(block, bytes); }

 private:
  /// What all ranks passed, in rank order.
  template <class X>
  [[nodiscard]] std::vector<X> collect(collective kind, X const& mine) {
    std::vector<X> all(group_.members.size());
    command it;
    it.what.kind = kind;
    it.what.count = sizeof(X);
    it.from = &mine;
    it.to = all.data();
    run(it);
    return all;
  }
  /// Collective. `chosen` are the ranks of this group that the new one consists of, this one among them.
  [[nodiscard]] std::shared_ptr<process_engine> make_group(collective kind, std::vector<int> const& chosen,
                                                           std::chrono::milliseconds deadline) {
    auto const count = static_cast<int>(chosen.size());
    auto* const own = group_.launch->make_board(count);
    auto const places = collect(kind, own == nullptr ? std::uint64_t{0} : group_.launch->offset(own));
    if (std::ranges::find(places, std::uint64_t{0}) != places.end()) {
      if (own != nullptr) group_.launch->heap.deallocate(own, node_board::bytes(count));
      throw comm_error(text(group_.launch->who, ": ", name_of(kind),
                            " found no shared memory left for another group; free tensors from allocate, or groups"),
                       {group_.launch->rank, std::string(name_of(kind))});
    }
    std::vector<int> members;
    std::vector<node_board*> boards;
    for (int const each : chosen) {
      members.push_back(group_.world_rank(each));
      boards.push_back(
          std::launder(reinterpret_cast<node_board*>(group_.at(each, places[static_cast<std::size_t>(each)]))));
    }
    auto const place = static_cast<int>(std::ranges::find(chosen, group_.rank) - chosen.begin());
    return std::make_shared<node_engine>(driver_, std::move(members), place, deadline, std::move(boards));
  }

  std::shared_ptr<node_driver> driver_;
  node_group group_;
  node_operation blocking_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_ENGINE_INCLUDED

// ---- trireme/comm/detail/node_setup.hpp (goes on)
namespace trireme::comm::detail {

/// Gives the string of every rank, in rank order; collective.
using node_all_gather = std::function<std::vector<std::string>(std::string const&)>;

/// What a rank tells the others so that they find its memory; one line of text.
struct node_card {
  std::string host;
  long process = 0;
  int file = -1;
  std::uint64_t token[2] = {};
  std::size_t stride = 0;
  std::string cores;  ///< which it may run on

  [[nodiscard]] static std::string this_host() {
    utsname names{};
    ::uname(&names);
    return std::string("host:") + static_cast<char const*>(names.nodename);
  }
  [[nodiscard]] static std::string these_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::bitset<CPU_SETSIZE> bits;
    if (::sched_getaffinity(0, sizeof set, &set) == 0)
      for (std::size_t core = 0; core < CPU_SETSIZE; ++core) bits[core] = CPU_ISSET(core, &set);
    return bits.to_string();
  }
};

[[nodiscard]] inline std::string to_line(node_card const& it) {
  return text(it.host, " ", it.process, " ", it.file, " ", it.token[0], " ", it.token[1], " ", it.stride, " ",
              it.cores);
}
[[nodiscard]] inline bool read_line(std::string const& line, node_card& it) {
  std::istringstream in(line);
  return static_cast<bool>(in >> it.host >> it.process >> it.file >> it.token[0] >> it.token[1] >> it.stride >>
                           it.cores);
}

/// The memory of one rank, and of the others once it has heard of them.
class node_meeting {
 public:
  explicit node_meeting(int rank, int size) : rank_(rank), size_(size), files_(static_cast<std::size_t>(size)) {}

  /// Makes this rank's memory; what is wrong, or nothing.
  [[nodiscard]] std::string prepare() {
    if (size_ > node_most_ranks) return text(size_, " ranks are more than the ", node_most_ranks, " that it can hold");
    card_.host = node_card::this_host();
    card_.process = ::getpid();
    card_.cores = node_card::these_cores();
    std::random_device dice;
    for (auto& word : card_.token) word = (std::uint64_t{dice()} << 32) | dice();
    auto& file = files_[static_cast<std::size_t>(rank_)];
    file = node_file(::memfd_create("trireme", MFD_CLOEXEC));
    if (!file.is_open()) return reason("memfd_create");
    if (!file.lock()) return reason("fcntl(F_OFD_SETLK)");
    card_.file = file.number();
    card_.stride = largest();
    while (!map_.reserve(size_, card_.stride)) {
      card_.stride = card_.stride / 2 / node_map::huge_page * node_map::huge_page;
      if (card_.stride < smallest()) return reason("mmap");
    }
    if (::ftruncate(file.number(), static_cast<off_t>(card_.stride)) != 0) return reason("ftruncate");
    return {};
  }
  [[nodiscard]] std::string line() const { return to_line(card_); }

  /// Opens the memory of all and makes this rank's board; what is wrong, or nothing.
  [[nodiscard]] std::string meet(std::vector<std::string> const& lines) {
    std::vector<node_card> cards(static_cast<std::size_t>(size_));
    std::bitset<CPU_SETSIZE> cores;
    for (std::size_t each = 0; each < cards.size(); ++each) {
      if (!read_line(lines[each], cards[each])) return text("rank ", each, " sent no card");
      if (cards[each].host != card_.host) return text("ranks ", rank_, " and ", each, " are on different hosts");
      cores |= std::bitset<CPU_SETSIZE>(cards[each].cores);
      card_.stride = std::min(card_.stride, cards[each].stride);
    }
    core_each_ = cores.count() >= cards.size();
    map_ = {};  // both at once may not fit
    if (!map_.reserve(size_, card_.stride)) return reason("mmap");
    for (int each = 0; each < size_; ++each) {
      auto& file = files_[static_cast<std::size_t>(each)];
      auto const& theirs = cards[static_cast<std::size_t>(each)];
      auto const path = text("/proc/", theirs.process, "/fd/", theirs.file);
      if (each != rank_) file = node_file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      if (!file.is_open())
        return reason(text("rank ", rank_, " cannot open the memory of rank ", each, ": open ", path));
      if (!map_.place(each, file, card_.stride)) return reason("mmap");
    }
    auto* const header = ::new (map_.at(rank_)) node_header;
    std::memcpy(header->token, card_.token, sizeof card_.token);
    return {};
  }
  /// Whether the files are the right ones, asked when all ranks have written their tokens.
  [[nodiscard]] std::string verify(std::vector<std::string> const& lines) const {
    for (int each = 0; each < size_; ++each) {
      node_card card;
      static_cast<void>(read_line(lines[static_cast<std::size_t>(each)], card));
      if (std::memcmp(map_.at(each), card.token, sizeof card.token) != 0)
        return text("what rank ", rank_, " opened is not the memory of rank ", each, " (another process namespace?)");
    }
    return {};
  }
  [[nodiscard]] std::shared_ptr<process_engine> engine(std::string_view who, std::chrono::milliseconds deadline,
                                                       bool needs_launcher) {
    auto launch =
        std::make_shared<node_launch>(who, rank_, std::move(files_), std::move(map_), card_.stride, core_each_);
    if (needs_launcher) launch->expect_launcher();
    // The first block of every heap, so that all know where it is.
    auto* const own = launch->make_board(size_);
    std::vector<int> members;
    std::vector<node_board*> boards;
    for (int each = 0; each < size_; ++each) {
      members.push_back(each);
      boards.push_back(reinterpret_cast<node_board*>(launch->base(each) + launch->offset(own)));
    }
    auto driver = std::make_shared<node_driver>(std::move(launch));
    return std::make_shared<node_engine>(std::move(driver), std::move(members), rank_, deadline, std::move(boards));
  }

 private:
  static std::string reason(std::string const& what) { return text(what, ": ", std::strerror(errno)); }
  [[nodiscard]] std::size_t smallest() const noexcept {
    auto const need = node_header::bytes + 2 * node_board::bytes(size_) + node_map::huge_page;
    return (need / node_map::huge_page + 8) * node_map::huge_page;
  }
  /// Four times the memory of the machine, because what is not used costs nothing; less if limits ask for it.
  [[nodiscard]] std::size_t largest() const noexcept {
    auto const memory =
        static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    auto wish = std::min(4 * memory, (std::size_t{1} << 45) / static_cast<std::size_t>(size_));
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      wish = std::min(wish, static_cast<std::size_t>(limit.rlim_cur));
    if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)  // the program needs some, too
      wish = std::min(wish, static_cast<std::size_t>(limit.rlim_cur) / 4 / static_cast<std::size_t>(size_));
    return std::max(wish, smallest()) / node_map::huge_page * node_map::huge_page;
  }

  int rank_;
  int size_;
  bool core_each_ = false;
  node_card card_;
  node_map map_;
  std::vector<node_file> files_;
};

/// Collective. The engine of ranks that share a machine; null on all ranks alike, with a reason in `why`, if they do
/// not or if their memory cannot be shared. Where the ranks need their launcher, its end is an error of their waits.
[[nodiscard]] inline std::shared_ptr<process_engine> try_node_engine(std::string_view who, int rank, int size,
                                                                     std::chrono::milliseconds deadline,
                                                                     node_all_gather const& all_gather,
                                                                     std::string& why, bool needs_launcher = false) {
  node_meeting meeting(rank, size);
  // Whether a step went well on all ranks; they go on to the next one together.
  auto const first_fault = [&](std::vector<std::string> const& said) -> std::string {
    for (auto const& each : said)
      if (each.starts_with('!')) return each.substr(1);
    return {};
  };
  auto const say = [](std::string const& fault) { return fault.empty() ? std::string("ok") : "!" + fault; };

  auto const fault = meeting.prepare();
  auto const lines = all_gather(fault.empty() ? meeting.line() : say(fault));
  if (why = first_fault(lines); !why.empty()) return nullptr;
  if (why = first_fault(all_gather(say(meeting.meet(lines)))); !why.empty()) return nullptr;
  if (why = first_fault(all_gather(say(meeting.verify(lines)))); !why.empty()) return nullptr;
  auto engine = meeting.engine(who, deadline, needs_launcher);
  static_cast<void>(all_gather("ok"));  // the boards are there
  return engine;
}

/// Collective. The engine of ranks that share a machine; comm_error on all ranks alike if they do not.
[[nodiscard]] inline std::shared_ptr<process_engine> make_node_engine(std::string_view who, int rank, int size,
                                                                      std::chrono::milliseconds deadline,
                                                                      node_all_gather const& all_gather) {
  std::string why;
  auto engine = try_node_engine(who, rank, size, deadline, all_gather, why);
  if (engine == nullptr)
    throw comm_error(text(who, ": the ranks cannot share memory: ", why,
                          "; start all of them on one machine, as one user, in one process namespace"),
                     {rank, "launch"});
  return engine;
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_NODE_SETUP_INCLUDED

// ---- trireme/comm/detail/process_start.hpp (goes on)
namespace trireme::comm::detail {

/// The engine of this process's rank, by a rendezvous with the others of its machine. `who` begins every message.
[[nodiscard]] inline std::shared_ptr<process_engine> engine_by_rendezvous(std::string_view who,
                                                                          bootstrap::place const& here,
                                                                          std::chrono::milliseconds deadline) {
  if (here.size < 1)
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because,
                            ") does not say how many ranks there are; set TRIREME_RANK and TRIREME_SIZE"));
  if (!here.is_one_machine())
    throw config_error(
        text(who, ": ", here.size, " ranks with ", here.local_size,
             " on this machine are on several machines, between which MPI or NCCL are the engines; start "
             "a program with comm::mpi by mpirun, or use comm::nccl"));
  if (here.size > node_most_ranks)  // before memory is taken for each of them
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because, ") says that there are ",
                            here.size, " ranks, but shared memory holds at most ", node_most_ranks));
  rendezvous where = here.size == 1 ? rendezvous{} : rendezvous::from(here);
  where.deadline = deadline;
  meeting met(where, here.rank, here.size, who);
  return make_node_engine(who, here.rank, here.size, deadline,
                          [&met](std::string const& own) { return met.all_gather(own); });
}

/// Tells the other ranks that this one ends with an error, which ends their waits, and settles who tells the user.
inline void end_with_error(process_engine& engine, std::exception_ptr const& failure) noexcept {
  try {
    engine.abandon(sentence_of(failure));
  } catch (...) {  // without memory for a sentence their deadlines end the waits
  }
  last_report() = engine.reports() ? report::by_this_process : report::by_another;
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_PROCESS_START_INCLUDED

// ---- trireme/comm/detail/process_recovery.hpp (goes on)
namespace trireme::comm::detail {

/// Calls `body(world, attempt)` until it succeeds. After a failure the living processes settle in the memory that they
/// shared who goes on, and meet again under the same conditions, numbered in the order of their ranks.
template <class World, class Body>
auto recover_processes(std::string_view who, bootstrap::place here, std::chrono::milliseconds deadline,
                       recovery const& how, Body& body) {
  check(how, here.size);
  last_report() = report::unsettled;
  auto engine = engine_by_rendezvous(who, here, deadline);
  for (int attempt = 0;; ++attempt) {
    std::exception_ptr failure;
    try {
      World world(engine);
      return std::invoke(body, world, attempt);
    } catch (comm_error const&) {  // of this rank, because of another one
      failure = std::current_exception();
    } catch (...) {
      end_with_error(*engine, std::current_exception());
      throw;
    }
    auto const reason = sentence_of(failure);
    engine->abandon(reason);  // where it was this rank that noticed
    auto const left = attempt == how.attempts ? std::vector<int>{} : engine->survivors();
    if (left.empty() || static_cast<int>(left.size()) < how.min_ranks) {
      end_with_error(*engine, failure);
      std::rethrow_exception(failure);
    }
    here.rank = here.local_rank = static_cast<int>(std::ranges::find(left, engine->rank()) - left.begin());
    here.size = here.local_size = static_cast<int>(left.size());
    if (!here.job.empty()) here.job += ".again";  // they are not to meet whoever is late for the meeting before
    // The old one stays until all have met: to the others its end would be this rank's death.
    engine = engine_by_rendezvous(who, here, deadline);
    if (how.on_failure) how.on_failure({attempt + 1, here.rank, here.size, reason});
  }
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_PROCESS_RECOVERY_INCLUDED

// ---- trireme/comm/processes.hpp (goes on)
namespace trireme::comm {

/// Ranks are processes of one machine that some launcher has started: torchrun, mpirun, srun, or a script that sets
/// TRIREME_RANK and TRIREME_SIZE (comm/bootstrap.hpp). They meet by a rendezvous and work in shared memory; no MPI.
///
/// Ranks    all that the launcher has started; one without a launcher.
/// Errors   launch throws config_error if the environment makes no sense, or the ranks are on several machines: between
///          machines comm::mpi or comm::nccl carry them. comm_error if ranks do not come before the deadline.
/// @example torchrun --no-python --nproc-per-node 2 ./program
struct processes {
  using policy_category = slot::communicator;
  static constexpr std::string_view name = "processes";

  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  friend bool operator==(processes const&, processes const&) = default;
};

[[nodiscard]] inline std::string to_string(processes const& it) {
  return text("comm::processes{.deadline = ", to_string(it.deadline), "}");
}

using processes_world = process_world<processes>;

/// How trireme::launch runs a body on comm::processes: in this process, as the rank that it is.
template <class Body>
auto launch_ranks(processes const& description, Body& body) {
  auto const here = bootstrap::detect();
  bootstrap::log(here);
  detail::last_report() = detail::report::unsettled;
  auto const engine = detail::engine_by_rendezvous("trireme::comm::processes", here, description.deadline);
  processes_world world(engine);
  try {
    return std::invoke(body, world);
  } catch (...) {
    detail::end_with_error(*engine, std::current_exception());
    throw;
  }
}

/// How trireme::launch goes on with comm::processes: the processes that are left do.
template <class Body>
auto recover_ranks(processes const& description, recovery const& how, Body& body) {
  auto const here = bootstrap::detect();
  bootstrap::log(here);
  return detail::recover_processes<processes_world>("trireme::comm::processes", here, description.deadline, how, body);
}

}  // namespace trireme::comm
