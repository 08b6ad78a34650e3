#pragma once

#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/node/engine.hpp"
#include "trireme/comm/node/memory.hpp"
#include "trireme/core/address.hpp"
#include "trireme/core/cores.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/random_bits.hpp"

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
