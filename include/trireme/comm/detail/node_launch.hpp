#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/detail/node_layout.hpp"
#include "trireme/comm/detail/node_memory.hpp"
#include "trireme/comm/detail/waiting.hpp"
#include "trireme/core/error.hpp"

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
