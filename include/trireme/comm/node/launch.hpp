#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/detail/waiting.hpp"
#include "trireme/comm/node/layout.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm::detail {

/// The differences between ranks that are threads of one process and ranks that are processes of one machine: where
/// their memory is, and how a rank detects that another one has ended.
class node_backend {
 public:
  /// @param memories  the base addresses of offsets in each rank's memory.
  /// @param all       the headers of all ranks.
  /// @param bytes     the size of each rank's memory, from its base, that the other ranks can access.
  node_backend(bool together, std::vector<std::byte*> memories, std::vector<node_header*> all, std::uintptr_t bytes)
      : one_process(together), bases(std::move(memories)), headers(std::move(all)), reach(bytes) {}
  node_backend(node_backend const&) = delete;
  node_backend& operator=(node_backend const&) = delete;
  virtual ~node_backend() = default;

  bool const one_process;
  std::vector<std::byte*> const bases;
  std::vector<node_header*> const headers;
  std::uintptr_t const reach;

  /// Memory that all ranks can access, for a board or a tensor; null if there is none left.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* block, std::size_t bytes) noexcept = 0;
  /// After a failure no memory is reused: a rank that has not noticed the failure may still write.
  virtual void close() noexcept {}
  /// Whether the process of another rank has ended without leaving first. Queries the system.
  [[nodiscard]] virtual bool is_dead(int) const noexcept { return false; }
  /// Whether the process that started this one, and is needed, has ended.
  [[nodiscard]] virtual bool is_orphaned() const noexcept { return false; }
};

class node_launch;

/// The launches of this process that still exist when it ends by exit(). Their other ranks are then informed: the
/// process may run on for long, in destructors, or in an MPI_Finalize that waits for those ranks.
class node_exits {
 public:
  static node_exits& of_process() {
    static auto& only = *new node_exits;  // a launch may end after static objects
    return only;
  }
  void add(node_launch& it) {
    std::lock_guard const lock(mutex_);
    if (!std::exchange(asked_, true)) std::atexit([] { of_process().announce(); });
    launches_.push_back({&it, ::getpid()});
  }
  void remove(node_launch& it) noexcept {
    std::lock_guard const lock(mutex_);
    std::erase_if(launches_, [&](open_launch const& each) { return each.launch == &it; });
  }

 private:
  struct open_launch {
    node_launch* launch;
    ::pid_t process;  // not a forked child
  };

  node_exits() = default;
  void announce() noexcept;

  std::mutex mutex_;
  bool asked_ = false;
  std::vector<open_launch> launches_;
};

/// The state that a rank shares with the others of its launch: the memory of all, the failure, and the means to wake
/// each other.
class node_launch {
 public:
  node_launch(std::string_view name, int own_rank, std::shared_ptr<node_backend> where, bool core_each)
      : who(name),
        rank(own_rank),
        spins(core_each ? 300 : 10),
        patience(core_each ? std::chrono::microseconds(1000) : std::chrono::microseconds(200)),
        backend(std::move(where)),
        base_(reinterpret_cast<std::uintptr_t>(backend->bases[static_cast<std::size_t>(own_rank)])) {
    if (!backend->one_process) node_exits::of_process().add(*this);
  }
  node_launch(node_launch const&) = delete;
  node_launch& operator=(node_launch const&) = delete;
  ~node_launch() {
    if (!backend->one_process) node_exits::of_process().remove(*this);
  }

  std::string const who;  ///< "trireme::comm::mpi"
  int const rank;
  int const spins;                           ///< pauses before the first yield
  std::chrono::microseconds const patience;  ///< how long to yield before sleeping
  std::shared_ptr<node_backend> const backend;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(backend->headers.size()); }
  [[nodiscard]] std::byte* base(int of) const noexcept { return backend->bases[static_cast<std::size_t>(of)]; }
  [[nodiscard]] node_header& header(int of) const noexcept { return *backend->headers[static_cast<std::size_t>(of)]; }
  [[nodiscard]] node_header& mine() const noexcept { return header(rank); }
  [[nodiscard]] std::uint64_t offset(void const* address) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address) - base_;
  }
  /// Whether the other ranks can access this memory.
  [[nodiscard]] bool is_reached(void const* address, std::uint64_t bytes) const noexcept {
    auto const at = offset(address);
    return at < backend->reach && bytes <= backend->reach - at;
  }
  [[nodiscard]] bool is_dead(int of) const noexcept { return of != rank && backend->is_dead(of); }

  [[nodiscard]] bool failed() const noexcept { return header(0).failure.load() != 0; }
  /// Ends all waits of all ranks with `sentence`. Only the first call of the launch counts.
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
    return speaker < 0 || speaker >= size()
               ? std::string()
               : std::string(header(speaker).sentence,
                             ::strnlen(header(speaker).sentence, node_header::sentence_bytes));
  }
  /// After a failure: waits until no other rank accesses this rank's memory. For processes at most a second, because a
  /// process may have been stopped during an access.
  void settle() noexcept {
    backend->close();
    auto const end = clock::now() + std::chrono::seconds(1);
    for (int each = 0; each < size(); ++each)
      while (each != rank && header(each).inside.load() != 0 &&
             (backend->one_process || (!is_dead(each) && clock::now() < end)))
        std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  /// Whether this rank prints why the launch has failed: the lowest rank that calls this in time does. The others get
  /// false a little later, because launchers end all processes as soon as one has ended.
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

  /// After a failure: the ranks that go on, the same list on all of them. Empty if some rank has neither called this
  /// nor ended before the deadline; then no rank goes on, nor does that one if it calls this later.
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
      while (!is_left(lowest)) ++lowest;  // ends at this rank at the latest
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

  /// Wakes the sleeping threads of a rank.
  void ring(node_header& there) const noexcept {
    if (there.sleepers.load() == 0) return;
    there.bell.fetch_add(1);
    wake_all(there.bell, backend->one_process);
  }
  /// Sleeps until another rank calls ring(), unless ready(), which is called after `sleepers` is set, so that no
  /// wake-up is lost.
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
    sleep_while(here.bell, value, limit, backend->one_process);
  }

  /// A block for this rank's board in a group of `size`; null if there is no memory left.
  [[nodiscard]] node_board* make_board(int size) {
    {
      std::lock_guard const lock(retiring_);
      sweep();
    }
    void* const block = backend->allocate(board_bytes(size));
    return block == nullptr ? nullptr : &node_board::make(block, size);
  }
  [[nodiscard]] std::size_t board_bytes(int size) const noexcept {
    return node_board::bytes(size, !backend->one_process);
  }
  /// This rank no longer reads these boards of a group. The last thread to leave frees them; a process frees its own
  /// board once all have left.
  void leave(std::vector<node_board*> const& boards, node_board& own) {
    auto const size = static_cast<int>(boards.size());
    for (auto* const each : boards)
      if (each->leavers.fetch_add(1) + 1 == boards.size() && backend->one_process)
        backend->deallocate(each, board_bytes(size));
    if (backend->one_process) return;
    std::lock_guard const lock(retiring_);
    retired_.emplace_back(&own, size);
  }

 private:
  [[nodiscard]] std::vector<int> give_up() noexcept {
    mine().goes_on.store(node_header::given_up);
    return {};
  }
  void sweep() noexcept {
    std::erase_if(retired_, [this](auto const& each) {
      if (each.first->leavers.load() < static_cast<std::uint32_t>(each.second)) return false;
      backend->deallocate(each.first, board_bytes(each.second));
      return true;
    });
  }

  std::uintptr_t const base_;
  std::mutex failing_;
  bool spoken_ = false;
  std::mutex retiring_;
  std::vector<std::pair<node_board*, int>> retired_;
};

inline void node_exits::announce() noexcept {
  std::lock_guard const lock(mutex_);
  for (auto const& [launch, process] : launches_) {
    if (process != ::getpid()) continue;
    launch->mine().left.store(1);
    for (auto* const header : launch->backend->headers) launch->ring(*header);
  }
}

}  // namespace trireme::comm::detail
