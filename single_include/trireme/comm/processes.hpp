// Trireme 0.1.0: trireme/comm/processes.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 36163c0cac553c3960fcb06cf433909cba60fab7976da5e7fb900940379eb42d
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/rendezvous.hpp"
#include "trireme/comm/report.hpp"
#include "trireme/core/random_bits.hpp"

// ---- trireme/comm/processes.hpp
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace trireme::comm {

/// Ranks are processes on one machine, started by a launcher: torchrun, mpirun, srun, or a script that sets
/// TRIREME_RANK and TRIREME_SIZE (comm/bootstrap.hpp). They meet by a rendezvous and communicate through shared memory,
/// without MPI.
///
/// Ranks    all that the launcher has started; one without a launcher.
/// Errors   launch throws config_error if the environment is inconsistent, or the ranks are on several machines: use
///          comm::mpi or comm::nccl there. comm_error if ranks do not arrive before the deadline.
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

/// One rank of comm::processes.
using processes_world = any_world;

namespace detail {

/// Makes the engine of this process's rank by a rendezvous with the others on its machine. `who` begins every message.
[[nodiscard]] std::shared_ptr<collective_engine> engine_by_rendezvous(std::string_view who,
                                                                      bootstrap::launch_info const& here,
                                                                      std::chrono::milliseconds deadline);
/// The same, with this process's rank from the environment.
[[nodiscard]] std::shared_ptr<collective_engine> engine_of(processes const& description);
/// Runs `body(world, attempt)` as this process's rank, and reports to the other ranks how it ended.
void run_process(std::shared_ptr<collective_engine> const& engine, std::function<void(any_world&, int)> const& body);
/// Runs `body(world, attempt)` until it succeeds. After a failure the remaining processes agree in shared memory which
/// of them go on (node_launch::survivors). They meet again, and get new ranks in the order of the old ones.
void recover_processes(std::string_view who, bootstrap::launch_info here, std::chrono::milliseconds deadline,
                       recovery const& how, std::function<void(any_world&, int)> const& body);

/// Passes `body` to `run` as a function of a world and an attempt's number, and returns the result of the body.
template <class Run, class Body>
auto result_of_body(Run const& run, Body& body) {
  constexpr bool counts = std::invocable<Body&, any_world&, int>;
  auto const call = [&body](any_world& world, [[maybe_unused]] int attempt) -> decltype(auto) {
    if constexpr (counts)
      return std::invoke(body, world, attempt);
    else
      return std::invoke(body, world);
  };
  using result = std::decay_t<decltype(call(std::declval<any_world&>(), 0))>;
  return returned_by<result>([&](auto const& keep) {
    run([&](any_world& world, int attempt) { keep([&]() -> decltype(auto) { return call(world, attempt); }); });
  });
}

}  // namespace detail

/// How trireme::launch runs a body on comm::processes: in this process, as its rank.
template <class Body>
auto launch_ranks(processes const& description, Body& body) {
  return detail::result_of_body([&](auto const& once) { detail::run_process(detail::engine_of(description), once); },
                                body);
}

/// How trireme::launch recovers with comm::processes: the remaining processes go on.
template <class Body>
auto recover_ranks(processes const& description, recovery const& how, Body& body) {
  return detail::result_of_body(
      [&](auto const& again) {
        auto const here = bootstrap::detect();
        bootstrap::log(here);
        detail::recover_processes("trireme::comm::processes", here, description.deadline, how, again);
      },
      body);
}

}  // namespace trireme::comm

#ifndef TRIREME_COMM_PROCESSES_IPP_INCLUDED
#define TRIREME_COMM_PROCESSES_IPP_INCLUDED

// ---- trireme/comm/processes.ipp
#include <algorithm>
#include <vector>

#ifndef TRIREME_COMM_NODE_SETUP_INCLUDED
#define TRIREME_COMM_NODE_SETUP_INCLUDED

// ---- trireme/comm/node/setup.hpp
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#ifndef TRIREME_COMM_NODE_MEMORY_INCLUDED
#define TRIREME_COMM_NODE_MEMORY_INCLUDED

// ---- trireme/comm/node/memory.hpp
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace trireme::comm::detail {

/// Address space in which the memory files of all ranks are mapped side by side, so that a peer's address takes one
/// addition.
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
  /// Maps `bytes` of a rank's file at its position.
  [[nodiscard]] bool place(int rank, descriptor const& file, std::size_t bytes) noexcept {
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

/// The blocks of this rank's memory file. Only this rank tracks which are in use; freed pages go back to the system.
class node_heap {
 public:
  node_heap(std::byte* base, std::size_t begin, std::size_t end, int file) : base_(base), file_(file) {
    free_.emplace(begin, end - begin);
  }

  /// The first free block that is large enough; null if there is none.
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
    } catch (...) {  // no memory for the entry: the address range leaks, but not its pages
    }
  }
  /// After a failure no memory is reused: a rank that has not noticed the failure may still write.
  void close() noexcept {
    std::lock_guard const lock(mutex_);
    closed_ = true;
  }

 private:
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t whole(std::size_t bytes) noexcept { return (bytes + page - 1) / page * page; }

  std::byte* const base_;
  int const file_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  ///< offset and length of each free block
  bool closed_ = false;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_NODE_MEMORY_INCLUDED

// ---- trireme/comm/node/setup.hpp (goes on)
namespace trireme::comm::detail {

/// Returns the string of every rank, in rank order; collective.
using node_all_gather = std::function<std::vector<std::string>(std::string const&)>;

/// The data that a rank sends to the others for them to find its memory; one line of text.
struct node_card {
  std::string host;
  long process = 0;
  int file = -1;
  std::uint64_t token[2] = {};
  std::size_t stride = 0;
  int granted = 0;    ///< number of cores' time granted by its control groups; 0: no limit
  std::string cores;  ///< a 1 for each core on which it may run

  [[nodiscard]] static std::string this_host() {
    utsname names{};
    ::uname(&names);
    return std::string("host:") + static_cast<char const*>(names.nodename);
  }
  [[nodiscard]] static std::string these_cores() {
    auto const allowed = trireme::detail::allowed_cores();
    std::string out(static_cast<std::size_t>(allowed.back()) + 1, '0');
    for (int const core : allowed) out[static_cast<std::size_t>(core)] = '1';
    return out;
  }
};

[[nodiscard]] inline std::string to_line(node_card const& it) {
  return text(it.host, " ", it.process, " ", it.file, " ", it.token[0], " ", it.token[1], " ", it.stride, " ",
              it.granted, " ", it.cores);
}
/// Without a stream, whose number format would depend on the program's global locale.
[[nodiscard]] inline bool read_line(std::string_view line, node_card& it) {
  auto const word = [&line] {
    auto const out = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(out.size() + 1, line.size()));
    return out;
  };
  auto const number = [&word](auto& into) {
    auto const digits = word();
    auto const* const end = digits.data() + digits.size();
    auto const [rest, error] = std::from_chars(digits.data(), end, into);
    return error == std::errc() && rest == end;
  };
  it.host = word();
  bool const numbers = number(it.process) && number(it.file) && number(it.token[0]) && number(it.token[1]) &&
                       number(it.stride) && number(it.granted);
  it.cores = word();
  return numbers && !it.cores.empty();
}

/// Processes of one machine: a memory file a rank, mapped by all of them.
class process_backend final : public node_backend {
 public:
  /// @param needs_launcher  waits end with an error once the process that started this one has ended.
  process_backend(int rank, std::vector<descriptor> files, node_map map, std::size_t bytes, bool needs_launcher)
      : node_backend(false, bases_of(map, files.size()), headers_of(map, files.size()), bytes),
        files_(std::move(files)),
        map_(std::move(map)),
        heap_(map_.at(rank), node_header::bytes, bytes, files_[static_cast<std::size_t>(rank)].number()),
        launcher_(needs_launcher ? ::getppid() : 0) {}

  [[nodiscard]] void* allocate(std::size_t bytes) override { return heap_.allocate(bytes); }
  void deallocate(void* block, std::size_t bytes) noexcept override { heap_.deallocate(block, bytes); }
  void close() noexcept override { heap_.close(); }
  [[nodiscard]] bool is_dead(int of) const noexcept override {
    return !files_[static_cast<std::size_t>(of)].is_locked(true);
  }
  /// Whether the launcher has ended: the system has then given this process another parent.
  [[nodiscard]] bool is_orphaned() const noexcept override { return launcher_ > 1 && ::getppid() != launcher_; }

 private:
  [[nodiscard]] static std::vector<std::byte*> bases_of(node_map const& map, std::size_t size) {
    std::vector<std::byte*> all;
    for (std::size_t rank = 0; rank < size; ++rank) all.push_back(map.at(static_cast<int>(rank)));
    return all;
  }
  [[nodiscard]] static std::vector<node_header*> headers_of(node_map const& map, std::size_t size) {
    std::vector<node_header*> all;
    for (auto* const each : bases_of(map, size)) all.push_back(std::launder(elements_at<node_header>(each)));
    return all;
  }

  std::vector<descriptor> files_;  // before the heap, which needs them
  node_map map_;
  node_heap heap_;
  pid_t launcher_;
};

/// Makes the memory of this rank, then maps that of all ranks.
class node_meeting {
 public:
  explicit node_meeting(int rank, int size) : rank_(rank), size_(size), files_(static_cast<std::size_t>(size)) {}

  /// Makes this rank's memory; returns the error, or nothing.
  [[nodiscard]] std::string prepare() {
    if (size_ > node_most_ranks)
      return text(how_many(size_, "rank"), " are more than the ", node_most_ranks, " that shared memory supports");
    card_.host = node_card::this_host();
    card_.process = ::getpid();
    card_.granted = trireme::detail::granted_cores();
    card_.cores = node_card::these_cores();
    for (auto& word : card_.token) word = trireme::detail::random_bits();
    auto& file = files_[static_cast<std::size_t>(rank_)];
    file = descriptor(::memfd_create("trireme", MFD_CLOEXEC));
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

  /// Maps the memory of all ranks and writes this rank's header; returns the error, or nothing.
  [[nodiscard]] std::string meet(std::vector<std::string> const& lines) {
    std::vector<node_card> cards(static_cast<std::size_t>(size_));
    std::string cores;  // of all ranks together
    bool granted = true;
    for (std::size_t each = 0; each < cards.size(); ++each) {
      if (!read_line(lines[each], cards[each])) return text("rank ", each, " sent no valid description of its memory");
      if (cards[each].host != card_.host) return text("ranks ", rank_, " and ", each, " are on different hosts");
      cores.resize(std::max(cores.size(), cards[each].cores.size()), '0');
      for (std::size_t core = 0; core < cards[each].cores.size(); ++core)
        if (cards[each].cores[core] == '1') cores[core] = '1';
      granted = granted && (cards[each].granted == 0 || cards[each].granted >= size_);
      card_.stride = std::min(card_.stride, cards[each].stride);
    }
    core_each_ = granted && std::ranges::count(cores, '1') >= size_;
    map_ = {};  // the address space may not hold both
    if (!map_.reserve(size_, card_.stride)) return reason("mmap");
    for (int each = 0; each < size_; ++each) {
      auto& file = files_[static_cast<std::size_t>(each)];
      auto const& theirs = cards[static_cast<std::size_t>(each)];
      auto const path = text("/proc/", theirs.process, "/fd/", theirs.file);
      if (each != rank_) file = descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      if (!file.is_open())
        return reason(text("rank ", rank_, " cannot open the memory of rank ", each, ": open ", path));
      if (!map_.place(each, file, card_.stride)) return reason("mmap");
    }
    auto* const header = ::new (map_.at(rank_)) node_header;
    std::memcpy(header->token, card_.token, sizeof card_.token);
    return {};
  }
  /// Whether the files are the right ones. Called when all ranks have written their tokens.
  [[nodiscard]] std::string first_difference(std::vector<std::string> const& lines) const {
    for (int each = 0; each < size_; ++each) {
      node_card card;
      static_cast<void>(read_line(lines[static_cast<std::size_t>(each)], card));
      if (std::memcmp(map_.at(each), card.token, sizeof card.token) != 0)
        return text("the file that rank ", rank_, " opened is not the memory of rank ", each,
                    " (another process namespace?)");
    }
    return {};
  }
  [[nodiscard]] std::shared_ptr<collective_engine> engine(std::string_view who, std::chrono::milliseconds deadline,
                                                          bool needs_launcher) {
    auto backend =
        std::make_shared<process_backend>(rank_, std::move(files_), std::move(map_), card_.stride, needs_launcher);
    auto launch = std::make_shared<node_launch>(who, rank_, std::move(backend), core_each_);
    // It is the first block of every heap, so every rank knows its offset.
    auto* const own = launch->make_board(size_);
    std::vector<int> members;
    std::vector<node_board*> boards;
    for (int each = 0; each < size_; ++each) {
      members.push_back(each);
      boards.push_back(elements_at<node_board>(launch->base(each) + launch->offset(own)));
    }
    auto driver = std::make_shared<node_driver>(std::move(launch));
    return std::make_shared<node_engine>(std::move(driver), std::move(members), rank_, deadline, std::move(boards));
  }

 private:
  static std::string reason(std::string const& what) { return text(what, ": ", system_sentence(errno)); }
  [[nodiscard]] std::size_t smallest() const noexcept {
    auto const need = node_header::bytes + 2 * node_board::bytes(size_, true) + node_map::huge_page;
    return (need / node_map::huge_page + 8) * node_map::huge_page;
  }
  /// All ranks together have twice the memory of the machine, because unused memory costs nothing, and free blocks lie
  /// between used ones; less if limits require it. (A rank for which that is too little gets private memory, and its
  /// messages need one more copy.)
  [[nodiscard]] std::size_t largest() const noexcept {
    auto const memory =
        static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    auto wish = std::min(2 * memory, std::size_t{1} << 45) / static_cast<std::size_t>(size_);
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      wish = std::min<std::size_t>(wish, limit.rlim_cur);
    if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)  // the program itself also needs some
      wish = std::min<std::size_t>(wish, limit.rlim_cur / 4 / static_cast<std::size_t>(size_));
    return std::max(wish, smallest()) / node_map::huge_page * node_map::huge_page;
  }

  int rank_;
  int size_;
  bool core_each_ = false;
  node_card card_;
  node_map map_;
  std::vector<descriptor> files_;
};

/// Collective. The engine of ranks that share a machine; null on all ranks, with a reason in `why`, if they do not, or
/// if their memory cannot be shared. With `needs_launcher` waits end with an error once the launcher has ended.
[[nodiscard]] inline std::shared_ptr<collective_engine> try_node_engine(std::string_view who, int rank, int size,
                                                                        std::chrono::milliseconds deadline,
                                                                        node_all_gather const& all_gather,
                                                                        std::string& why, bool needs_launcher = false) {
  node_meeting meeting(rank, size);
  // Whether a step succeeded on all ranks; they begin the next one together.
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
  if (why = first_fault(all_gather(say(meeting.first_difference(lines)))); !why.empty()) return nullptr;
  auto engine = meeting.engine(who, deadline, needs_launcher);
  static_cast<void>(all_gather("ok"));  // all boards exist now
  return engine;
}

/// Collective. The engine of ranks that share a machine; comm_error on all ranks if they do not.
[[nodiscard]] inline std::shared_ptr<collective_engine> make_node_engine(std::string_view who, int rank, int size,
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

#endif  // TRIREME_COMM_NODE_SETUP_INCLUDED

// ---- trireme/comm/processes.ipp (goes on)
// Bodies of processes.hpp (see core/compiled.hpp).

namespace trireme::comm::detail {

TRIREME_BODY std::shared_ptr<collective_engine> engine_by_rendezvous(std::string_view who,
                                                                     bootstrap::launch_info const& here,
                                                                     std::chrono::milliseconds deadline) {
  if (here.size < 1)
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because,
                            ") does not give the number of ranks; set TRIREME_RANK and TRIREME_SIZE"));
  if (!here.is_one_machine())
    throw config_error(
        text(who, ": the ", how_many(here.size, "rank"), " are on several machines (", here.local_size,
             " on this one), but comm::processes connects one machine; use comm::mpi with mpirun, or comm::nccl"));
  if (here.size > node_most_ranks)  // before memory is taken for each of them
    throw config_error(text(who, ": ", name_of(here.started_by), " (", here.because, ") sets the number of ranks to ",
                            how_many(here.size, "rank"), ", but shared memory holds at most ", node_most_ranks));
  rendezvous where = here.size == 1 ? rendezvous{} : rendezvous::from(here);
  where.deadline = deadline;
  meeting met(where, here.rank, here.size, who);
  return make_node_engine(who, here.rank, here.size, deadline,
                          [&met](std::string const& own) { return met.all_gather(own); });
}

TRIREME_BODY std::shared_ptr<collective_engine> engine_of(processes const& description) {
  auto const here = bootstrap::detect();
  bootstrap::log(here);
  last_report() = report::unsettled;
  return engine_by_rendezvous("trireme::comm::processes", here, description.deadline);
}

/// Reports to the other ranks that this one ends with an error, which ends their waits, and settles who prints it.
inline void end_with_error(collective_engine& engine, std::exception_ptr const& failure) noexcept {
  try {
    engine.abandon(sentence_of(failure));
  } catch (...) {  // no memory for the message: the others' waits end at their deadlines
  }
  last_report() = engine.reports() ? report::by_this_process : report::by_another;
}

TRIREME_BODY void recover_processes(std::string_view who, bootstrap::launch_info here,
                                    std::chrono::milliseconds deadline, recovery const& how,
                                    std::function<void(any_world&, int)> const& body) {
  check(how, here.size);
  last_report() = report::unsettled;
  auto engine = engine_by_rendezvous(who, here, deadline);
  for (int attempt = 0;; ++attempt) {
    std::exception_ptr failure;
    engine->worlds->leave_it_to_the_launch();
    try {
      any_world world(engine);
      return body(world, attempt);
    } catch (comm_error const&) {  // this rank ended because of another one
      failure = std::current_exception();
    } catch (...) {
      end_with_error(*engine, std::current_exception());
      throw;
    }
    auto const reason = sentence_of(failure);
    engine->abandon(reason);  // this rank may have found the failure first
    auto const left = attempt == how.attempts ? std::vector<int>{} : engine->survivors();
    if (left.empty() || static_cast<int>(left.size()) < how.min_ranks) {
      end_with_error(*engine, failure);
      std::rethrow_exception(failure);
    }
    here.rank = here.local_rank = static_cast<int>(std::ranges::find(left, engine->rank()) - left.begin());
    here.size = here.local_size = static_cast<int>(left.size());
    if (!here.job.empty()) here.job += ".again";  // a rank may still be late for the previous meeting
    // The old engine lives until all have met: otherwise the others would take its end for the end of this rank.
    engine = engine_by_rendezvous(who, here, deadline);
    if (how.on_failure) how.on_failure({attempt + 1, here.rank, here.size, reason});
  }
}

TRIREME_BODY void run_process(std::shared_ptr<collective_engine> const& engine,
                              std::function<void(any_world&, int)> const& body) {
  engine->worlds->leave_it_to_the_launch();
  any_world world(engine);
  try {
    body(world, 0);
  } catch (...) {
    end_with_error(*engine, std::current_exception());
    throw;
  }
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_PROCESSES_IPP_INCLUDED
