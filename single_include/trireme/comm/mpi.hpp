// Trireme 0.1.0: trireme/comm/mpi.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: d03b0109341110d62fa371b777f7148a6ad67731706cf4162616de2762a25c36
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/processes.hpp"
#include "trireme/comm/sum_order.hpp"
#include "trireme/core/random_bits.hpp"

// ---- trireme/comm/mpi.hpp
#include <mpi.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace trireme::comm {

/// One rank of comm::mpi.
using mpi_world = any_world;

/// Ranks are the processes that mpirun has started; or, without MPI, those that torchrun has started on one machine.
///
/// Ranks    with launch, all ranks of MPI_COMM_WORLD, or all that torchrun has started if mpirun has started none; with
///          borrow(), those of the given communicator.
/// Bytes    on one machine ranks find each other by MPI and then use shared memory, without MPI. Between machines, or
///          with `.shared_memory = false`, MPI carries messages. A rank begins a collective with ceil(log2(size))
///          messages of 24 bytes, which also carry small values. Large values go directly from rank to rank; with
///          several ranks on each machine, partial sums of large values go from machine to machine
///          (docs/communicators.md).
/// Numerics sums in rank order. With `.order = sum_order::any` an all_reduce of 256 KiB or more over messages is MPI's
///          own (comm/sum_order.hpp): sums and means of float, double and integers of 32 and 64 bits, over all ranks.
///          Other sums, and sums of groups of only some ranks, are in rank order. On ordinary networks rank order is
///          as fast or faster (docs/communicators.md); `any` is for networks that compute sums in hardware.
/// Threads  works with every thread level of MPI. In shared memory the library makes no MPI calls. By messages, a
///          thread of the library makes them while the rank computes, if MPI provides MPI_THREAD_MULTIPLE or launch has
///          initialised it. Otherwise requests proceed only in calls of the rank (also `poll()`), so that programs may
///          call MPI between start and wait. Below MPI_THREAD_SERIALIZED only the thread that has initialised MPI may
///          use a world.
/// Errors   launch and borrow throw config_error if MPI has been finalised, if only another thread may call it, or if
///          the program is linked with another MPI than the launcher's; borrow also for MPI_COMM_NULL, an
///          intercommunicator or a communicator that has been freed. Calls on a world after MPI_Finalize throw
///          comm_error. After an error in a launch MPI is not finalised, so that mpirun ends the other ranks when this
///          one ends. After a borrowed world has failed, MPI_Finalize returns, other worlds work, and one can borrow
///          again.
struct mpi {
  using policy_category = slot::communicator;
  static constexpr std::string_view name = "mpi";

  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  bool shared_memory = true;           ///< whether ranks of one machine may use shared memory
  sum_order order = sum_order::ranks;  ///< of large sums by messages; `any` only if all ranks ask for it

  /// Collective. A world on the ranks of `theirs`, which is duplicated and never freed. MPI must be initialised.
  [[nodiscard]] static mpi_world borrow(MPI_Comm theirs, std::chrono::milliseconds deadline = std::chrono::seconds(60),
                                        bool shared_memory = true, sum_order order = sum_order::ranks);

  friend bool operator==(mpi const&, mpi const&) = default;
};

[[nodiscard]] inline std::string to_string(mpi const& it) {
  return text("comm::mpi{.deadline = ", to_string(it.deadline), it.shared_memory ? "" : ", .shared_memory = false",
              it.order == sum_order::any ? ", .order = sum_order::any}" : "}");
}

namespace detail {

/// Runs `body(world, attempt)` as the rank that this process is.
void run_mpi(mpi const& description, std::function<void(any_world&, int)> const& body);
/// Also runs it again after a failure, as comm::processes does, unless mpirun has started the ranks.
void recover_mpi(mpi const& description, recovery const& how, std::function<void(any_world&, int)> const& body);

}  // namespace detail

/// How trireme::launch runs a body on comm::mpi: in this process, as the rank that it is.
template <class Body>
auto launch_ranks(mpi const& description, Body& body) {
  return detail::result_of_body([&](auto const& once) { detail::run_mpi(description, once); }, body);
}

/// How trireme::launch recovers with comm::mpi: as with comm::processes, unless mpirun has started the ranks.
template <class Body>
auto recover_ranks(mpi const& description, recovery const& how, Body& body) {
  return detail::result_of_body([&](auto const& again) { detail::recover_mpi(description, how, again); }, body);
}

}  // namespace trireme::comm

// The library trireme::compiled_mpi, which is compiled for one MPI, has the bodies.

#ifndef TRIREME_COMM_MPI_IPP_INCLUDED
#define TRIREME_COMM_MPI_IPP_INCLUDED

// ---- trireme/comm/mpi.ipp
#include <cstdio>
#include <memory>

#ifndef TRIREME_COMM_MPI_ENGINE_INCLUDED
#define TRIREME_COMM_MPI_ENGINE_INCLUDED

// ---- trireme/comm/mpi/engine.hpp
#include <algorithm>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#ifndef TRIREME_COMM_MPI_DRIVER_INCLUDED
#define TRIREME_COMM_MPI_DRIVER_INCLUDED

// ---- trireme/comm/mpi/driver.hpp
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>

#ifndef TRIREME_COMM_MPI_CLOSING_INCLUDED
#define TRIREME_COMM_MPI_CLOSING_INCLUDED

// ---- trireme/comm/mpi/closing.hpp
#include <cstddef>

#ifndef TRIREME_COMM_DETAIL_ROUNDS_INCLUDED
#define TRIREME_COMM_DETAIL_ROUNDS_INCLUDED

// ---- trireme/comm/detail/rounds.hpp
namespace trireme::comm::detail {

/// A buffer that never shrinks; not initialised. Its contents are kept.
class byte_buffer {
 public:
  [[nodiscard]] std::byte* at_least(std::size_t bytes) {
    if (bytes > size_) {
      data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_ = bytes;
    }
    return data_.get();
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

/// The blocks that rounds carry besides calls: a block of each rank, or of one, to all; or from each rank a block for
/// each.
struct round_blocks {
  enum class round_kind : std::uint8_t { nothing, gathered, distributed };
  round_kind how = round_kind::nothing;
  std::size_t each = 0;              ///< bytes of a block
  int only = -1;                     ///< gathered: the one rank that has a block
  std::vector<std::size_t> sizes{};  ///< instead of `each`: of the block of this rank, or for this rank

  [[nodiscard]] std::size_t of(int rank) const noexcept {
    if (how == round_kind::nothing || (only >= 0 && rank != only)) return 0;
    return sizes.empty() ? each : sizes[static_cast<std::size_t>(rank)];
  }
  /// Bytes of the blocks of `count` ranks: of rank `last` and the ranks before it.
  [[nodiscard]] std::size_t of_all(int last, int count, int size) const noexcept {
    if (how == round_kind::nothing) return 0;
    if (only >= 0) return (last - only + size) % size < count ? each : 0;
    if (sizes.empty()) return each * static_cast<std::size_t>(count);
    std::size_t sum = 0;
    for (int step = 0; step < count; ++step) sum += of((last - step + size) % size);
    return sum;
  }
  [[nodiscard]] std::size_t largest() const noexcept {
    return sizes.empty() ? each : *std::max_element(sizes.begin(), sizes.end());
  }
};

/// The rounds with which a collective begins between machines: in round i each rank sends to the rank 2^i after it, and
/// receives from the rank 2^i before it; after ceil(log2(size)) rounds it has received from all ranks, through others.
/// Messages begin with the call of their sender, and carry blocks. A rank that receives a call other than its own
/// stops. So no rank completes all rounds unless all calls are equal, because each path between differing calls has a
/// step at which they differ.
///
/// Method   [Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988]; with blocks [Bruck et al.,
///          "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997].
/// Bytes    sent by a rank: gathered: at most the blocks of all others (of one rank: its block, each round); dealt:
///          half of its blocks, each round. Kept: the blocks that are gathered or dealt, and twice (gathered: once) the
///          largest message.
///
/// @tparam Wire  carries messages between two ranks, one a round and channel:
///                 send(peer, channel, bytes, count)   the bytes must not change until sent()
///                 sent()                              whether all sends are done
///                 take(peer, channel, message)        whether a message has arrived; it is valid until the next call
///                 compare(peer, call)                 throws if the call of a peer differs
///                 refuse(peer)                        throws: a message has a wrong length, or contains no call
template <class Wire>
class rounds {
 public:
  using round_kind = round_blocks::round_kind;

  /// Clears the description of the blocks, which the caller then fills in before place().
  round_blocks& prepare() noexcept {
    blocks_.how = round_kind::nothing;
    blocks_.each = 0;
    blocks_.only = -1;
    blocks_.sizes.clear();
    return blocks_;
  }
  void place(call const& what, int rank, int size) {
    what_ = what;
    rank_ = rank;
    size_ = size;
    last_ = rounds_among(size);
    round_ = 0;
    received_ = false;
    std::size_t bytes = 0;
    if (blocks_.how == round_kind::distributed) {
      pitch_ = (blocks_.largest() + 7) / 8 * 8;
      bytes = pitch_ * static_cast<std::size_t>(size);
      static_cast<void>(out_.at_least(head_bytes + blocks_.largest() * static_cast<std::size_t>((size + 1) / 2)));
    } else {
      bytes = blocks_.of_all(rank, size, size);
    }
    std::memcpy(area_.at_least(head_bytes + bytes), &what_, head_bytes);
    have_ = blocks_.of(rank);
  }
  /// Gathered: this rank's block.
  [[nodiscard]] std::byte* own() const noexcept { return area_.data() + head_bytes; }
  /// Dealt: the block for a rank, before begin().
  [[nodiscard]] std::byte* block_for(int rank) const noexcept { return block_at((rank - rank_ + size_) % size_); }

  void begin(Wire& wire, int channel) {
    channel_ = channel;
    if (round_ < last_) send(wire);
  }
  /// Makes the progress that is possible now; true if all rounds are done.
  [[nodiscard]] bool advance(Wire& wire) {
    for (; round_ < last_; ++round_) {
      if (!received_) {
        std::span<std::byte const> message;
        if (!wire.take(source(), channel_, message)) return false;
        receive(wire, message);
        received_ = true;
      }
      if (blocks_.how == round_kind::distributed && !wire.sent()) return false;  // the next round needs its buffer
      received_ = false;
      if (round_ + 1 < last_) send(wire, round_ + 1);
    }
    return wire.sent();
  }
  /// The rank for which it waits, or -1.
  [[nodiscard]] int waits_for() const noexcept { return round_ < last_ && !received_ ? source() : -1; }

  /// Afterwards: calls visit(rank, block) for the block of each rank, or from each rank.
  template <class Visit>
  void for_each_block(Visit visit) const {
    std::size_t first = 0;
    for (int step = 0; step < size_; ++step) {
      int const rank = (rank_ - step + size_) % size_;
      if (blocks_.how == round_kind::distributed) {
        visit(rank, block_at(step));
        continue;
      }
      if (blocks_.only < 0 || rank == blocks_.only) visit(rank, own() + first);
      first += blocks_.of(rank);
    }
  }
  [[nodiscard]] round_kind how() const noexcept { return blocks_.how; }

 private:
  static constexpr std::size_t head_bytes = sizeof(call);

  [[nodiscard]] int hop(int round) const noexcept { return 1 << round; }
  [[nodiscard]] int source() const noexcept { return (rank_ - hop(round_) + size_) % size_; }
  [[nodiscard]] std::byte* block_at(int step) const noexcept { return own() + static_cast<std::size_t>(step) * pitch_; }
  /// Calls visit(slot, bytes) for the blocks that move in a round. Before a round, a block in slot j of rank r is for
  /// rank r + j with the bits of the previous rounds cleared in j.
  template <class Visit>
  void for_each_distributed(int round, int rank, Visit visit) const {
    for (int step = hop(round); step < size_; ++step)
      if ((step & hop(round)) != 0) visit(step, blocks_.of((rank + (step & ~(hop(round) - 1))) % size_));
  }

  void send(Wire& wire) { send(wire, round_); }
  void send(Wire& wire, int round) {
    int const target = (rank_ + hop(round)) % size_;
    if (blocks_.how != round_kind::distributed) {
      auto const count = std::min(hop(round), size_ - hop(round));
      wire.send(target, channel_, area_.data(), head_bytes + blocks_.of_all(rank_, count, size_));
      return;
    }
    auto* at = out_.data();
    std::memcpy(at, &what_, head_bytes);
    at += head_bytes;
    for_each_distributed(round, rank_, [&](int step, std::size_t bytes) {
      std::memcpy(at, block_at(step), bytes);
      at += bytes;
    });
    wire.send(target, channel_, out_.data(), static_cast<std::size_t>(at - out_.data()));
  }
  void receive(Wire& wire, std::span<std::byte const> message) {
    int const peer = source();
    call theirs;
    if (message.size() < head_bytes || !read_call(theirs, message.data())) wire.refuse(peer);
    wire.compare(peer, theirs);
    message = message.subspan(head_bytes);
    if (blocks_.how == round_kind::distributed) {
      std::size_t all = 0;
      for_each_distributed(round_, peer, [&](int, std::size_t bytes) { all += bytes; });
      if (message.size() != all) wire.refuse(peer);
      auto const* at = message.data();
      for_each_distributed(round_, peer, [&](int step, std::size_t bytes) {
        std::memcpy(block_at(step), at, bytes);
        at += bytes;
      });
      return;
    }
    auto const count = std::min(hop(round_), size_ - hop(round_));
    if (message.size() != blocks_.of_all(peer, count, size_)) wire.refuse(peer);
    if (!message.empty()) std::memcpy(own() + have_, message.data(), message.size());
    have_ += message.size();
  }

  round_blocks blocks_;
  call what_;
  int rank_ = 0;
  int size_ = 1;
  int channel_ = 0;
  int last_ = 0;
  int round_ = 0;
  bool received_ = false;  ///< message of this round has arrived
  std::size_t have_ = 0;   ///< gathered bytes
  std::size_t pitch_ = 0;  ///< between dealt blocks
  byte_buffer area_, out_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_ROUNDS_INCLUDED

// ---- trireme/comm/mpi/closing.hpp (goes on)
#ifndef TRIREME_COMM_MPI_MESSAGES_INCLUDED
#define TRIREME_COMM_MPI_MESSAGES_INCLUDED

// ---- trireme/comm/mpi/messages.hpp
#include <limits>

#ifndef TRIREME_COMM_MPI_SESSION_INCLUDED
#define TRIREME_COMM_MPI_SESSION_INCLUDED

// ---- trireme/comm/mpi/session.hpp
namespace trireme::comm::detail {

/// This process's use of MPI as a whole.
///
/// Initialises MPI only if the program has not, and finalises it only if it has initialised it: when the program ends,
/// so that launch can be called again. After a failure it does not finalise MPI, so that mpirun ends the other ranks
/// instead of waiting for them.
class mpi_session {
 public:
  mpi_session(mpi_session const&) = delete;
  mpi_session& operator=(mpi_session const&) = delete;

  static mpi_session& instance() {
    static mpi_session only;
    return only;
  }

  /// Initialises MPI if the program has not. Throws config_error after MPI_Finalize, or if only another thread may
  /// call.
  void begin() {
    if (is_over())
      throw config_error(
          "trireme::comm::mpi: MPI has been finalised already; finalise it after the last launch or borrow");
    int begun = 0;
    MPI_Initialized(&begun);
    int provided = MPI_THREAD_SINGLE;
    if (begun == 0) {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
      ours_ = true;
    } else {
      MPI_Query_thread(&provided);
    }
    provided_ = provided;
    if (provided >= MPI_THREAD_SERIALIZED) return;
    int is_main = 0;
    MPI_Is_thread_main(&is_main);
    if (is_main == 0)
      throw config_error(text("trireme::comm::mpi: MPI was initialised with ", level(),
                              ", so that only the thread that did it may use this world; call from that thread, or "
                              "initialise MPI with MPI_Init_thread(..., MPI_THREAD_SERIALIZED, ...)"));
    only_caller_ = std::this_thread::get_id();
  }
  /// Whether a thread of the library may call MPI while the rank computes (adr/0025): with MPI_THREAD_MULTIPLE. With
  /// MPI_THREAD_SERIALIZED the program's own calls would have to wait for that thread, so only if the library has
  /// initialised MPI.
  [[nodiscard]] bool has_helper() const noexcept {
    return provided_ >= (ours_ ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE);
  }
  /// Whether this thread may call MPI at all.
  [[nodiscard]] bool may_call() const noexcept {
    return provided_ >= MPI_THREAD_SERIALIZED || only_caller_ == std::this_thread::get_id();
  }
  /// Whether several threads may, one at a time.
  [[nodiscard]] bool lets_threads_call() const noexcept { return provided_ >= MPI_THREAD_SERIALIZED; }
  /// What MPI provides.
  [[nodiscard]] std::string_view level() const noexcept {
    if (provided_ == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
    if (provided_ == MPI_THREAD_FUNNELED) return "MPI_THREAD_FUNNELED";
    return provided_ == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED" : "MPI_THREAD_MULTIPLE";
  }
  [[nodiscard]] static bool is_over() noexcept {
    int over = 0;
    MPI_Finalized(&over);
    return over != 0;
  }
  /// Whether this object is finalising MPI, because the program ends.
  [[nodiscard]] bool ends() const noexcept { return ends_; }
  /// From here on MPI is not finalised at the end, because other ranks may not respond any more.
  void abandon() noexcept { abandoned_ = true; }

 private:
  mpi_session() = default;
  ~mpi_session() {
    if (!ours_ || abandoned_ || is_over()) return;
    ends_ = true;
    MPI_Finalize();
  }
  std::atomic<bool> ours_{false};
  std::atomic<int> provided_{MPI_THREAD_SINGLE};
  std::thread::id only_caller_;  // below MPI_THREAD_SERIALIZED
  bool abandoned_ = false;
  bool ends_ = false;
};

/// The sentence of an MPI error code.
[[nodiscard]] inline std::string mpi_sentence(int code) {
  char sentence[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, sentence, &length) != MPI_SUCCESS) return text("MPI error ", code);
  return {sentence, static_cast<std::size_t>(length)};
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_SESSION_INCLUDED

// ---- trireme/comm/mpi/messages.hpp (goes on)
namespace trireme::comm::detail {

inline constexpr std::string_view mpi_name = "trireme::comm::mpi";

/// What a message is, by its tag. Exchanges need no number, because messages of one tag do not overtake each other.
struct mpi_tags {
  static constexpr int failure = 0;     ///< a sentence
  static constexpr int ends = 1;        ///< empty: the sender ends with an error
  static constexpr int reports = 2;     ///< empty: the sender prints it
  static constexpr int roll = 3;        ///< who is here, and who is waited for (roll_call.hpp)
  static constexpr int closes = 4;      ///< the sender has nothing in flight any more (closing.hpp)
  static constexpr int leaves = 5;      ///< the number of the first collective that the sender never calls
  static constexpr int exchange = 6;    ///< and the next two: announcements, large values, and that these may come
  static constexpr int collective = 9;  ///< number k uses this + 3 (k mod window), and the two after it

  /// How many collectives have tags of their own, where `most` is the largest tag of this MPI.
  [[nodiscard]] static constexpr std::uint64_t window_of(int most) noexcept {
    return static_cast<std::uint64_t>(most - collective + 1) / 3;
  }
};

struct mpi_family;

/// A duplicate of an MPI communicator; nobody else's messages travel in it.
struct mpi_group {
  std::shared_ptr<mpi_family> family;  // fails with it; see driver.hpp
  MPI_Comm handle = MPI_COMM_NULL;
  std::vector<int> members;  // their ranks in `handle`
  int rank = 0;
  int size = 1;
  std::uint64_t next = 1;           // collective
  std::uint64_t set_up = 0;         // collectives before the first one of the program
  std::uint64_t next_exchange = 1;  // of this rank's own
  /// The first collective that some rank never calls, because it has left, and that rank as `handle` numbers it.
  std::uint64_t without_all = std::numeric_limits<std::uint64_t>::max();
  int has_left = -1;
  std::uint64_t window = 1;
  std::chrono::milliseconds deadline{};
  std::size_t piece_bytes = whole;
  std::vector<int> machines;  // of each rank, where they are known
  int local_size = 0;         // ranks on each machine, if all have as many and they stand in rank order; else 0
  sum_order order = sum_order::ranks;
  bool is_whole = false;  // all ranks of `handle`, in their order, as MPI's collectives need
  struct large_part {
    std::uint64_t exchange;
    int peer;
    bool sent;
  };
  std::vector<large_part> large_line;      // large messages of exchanges that have not begun, in the order of the calls
  std::vector<std::uint64_t> native_line;  // numbers of calls whose own collectives of MPI have not all begun

  static constexpr std::size_t whole = std::size_t{1} << 30;  // MPI counts in int
  // Pieces below the eager limit of Open MPI (64 KiB over TCP). Larger messages wait for an answer of the receiver, and
  // that answer queues behind data of the other direction, so that a line is not used both ways at the same time.
  static constexpr std::size_t unasked = std::size_t{60} << 10;

  void stand_on(std::vector<int> machine_of_each) {
    machines = std::move(machine_of_each);
    local_size = 0;
    if (machines.empty()) return;
    auto const each = static_cast<int>(std::ranges::count(machines, machines[0]));
    if (size % each != 0) return;
    for (int it = 0; it < size; ++it) {
      auto const at = [&](int of) { return machines[static_cast<std::size_t>(of)]; };
      if (at(it) != at(it / each * each) || (it >= each && it % each == 0 && at(it) == at(it - 1))) return;
    }
    local_size = each;
  }
  [[nodiscard]] int tag_of(std::uint64_t number) const noexcept {
    return mpi_tags::collective + 3 * static_cast<int>(number % window);
  }
};

/// What all messages of one operation have in common.
struct mpi_route {
  mpi_group const* group = nullptr;
  call what;
  std::uint64_t number = 0;
  int tag = 0;

  /// The number as the program counts its calls.
  [[nodiscard]] std::uint64_t printed_number() const noexcept {
    bool const of_program = what.kind != collective::exchange && number > group->set_up;
    return of_program ? number - group->set_up : number;
  }
  void check(int code) const {
    if (code != MPI_SUCCESS)
      throw comm_error(
          text(mpi_name, ": ", to_string(what), " number ", printed_number(), " failed: ", mpi_sentence(code)));
  }
};

/// Whether MPI is done with a request, which is then null. One that ends with an error is done, too.
[[nodiscard]] inline bool is_done(MPI_Request& request) noexcept {
  if (request == MPI_REQUEST_NULL) return true;
  int flag = 0;
  if (MPI_Test(&request, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && flag == 0) return false;
  request = MPI_REQUEST_NULL;
  return true;
}
/// The same of several: all of them are tested.
template <class Requests>
[[nodiscard]] bool are_done(Requests& requests) noexcept {
  bool all = true;
  for (auto& each : requests) all = is_done(each) && all;
  return all;
}

/// Visits all others of `size` numbers as (from whom, to whom) in an order in which not all begin with number 0.
template <class Visit>
void for_each_other(int own, int size, Visit visit) {
  for (int step = 1; step < size; ++step) visit((own - step + size) % size, (own + step) % size);
}

/// Messages in flight that are waited for together. They travel in pieces of the group's size.
class mpi_messages {
 public:
  void send(mpi_route const& route, void const* values, std::size_t size, int peer, int tag) {
    begin(route, static_cast<std::byte*>(const_cast<void*>(values)), size, {peer, tag, false});
  }
  void receive(mpi_route const& route, void* values, std::size_t size, int peer, int tag) {
    begin(route, static_cast<std::byte*>(values), size, {peer, tag, true});
  }
  /// Whether all are done; then it is empty again.
  [[nodiscard]] bool done(mpi_route const& route) {
    if (requests_.empty()) return true;
    if (waiting_ > 0) go_on(route);
    if (waiting_ > 0) return false;
    int flag = 0;
    route.check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &flag, MPI_STATUSES_IGNORE));
    if (flag != 0) clear();
    return flag != 0;
  }
  void clear() noexcept {
    requests_.clear();
    ends_.clear();
    rests_.clear();
    waiting_ = 0;
  }
  /// Appends the peers whose messages are missing.
  void append_late(std::vector<int>& peers, bool receiving) const {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      int flag = 1;
      if (requests_[i] != MPI_REQUEST_NULL && ends_[i].receiving == receiving)
        MPI_Request_get_status(requests_[i], &flag, MPI_STATUS_IGNORE);
      if (flag == 0) peers.push_back(ends_[i].peer);
    }
  }
  /// After a failure: MPI must not write to what it has not begun to write to. What it has begun, and all that is sent,
  /// goes on until is_quiet().
  void cancel() noexcept {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL && ends_[i].receiving) MPI_Cancel(&requests_[i]);
    waiting_ = 0;
  }
  /// After cancel(): whether MPI is done with all memory.
  [[nodiscard]] bool is_quiet() noexcept { return are_done(requests_); }

 private:
  struct end {
    int peer;
    int tag;
    bool receiving;
    std::int32_t rest = -1;  // index in rests_ of what is left of the message; -1: nothing
  };
  struct remainder {
    std::byte* at;
    std::size_t bytes;
  };
  static constexpr std::size_t pieces_in_flight = 16;  // of one message

  void begin(mpi_route const& route, std::byte* at, std::size_t size, end where) {
    // Exchanges share a tag, so all pieces of one message must be posted before those of the next.
    bool const at_once = route.what.kind == collective::exchange;
    auto const piece = route.group->piece_bytes;
    if (auto const first = pieces_in_flight * piece; !at_once && size > first) {
      where.rest = static_cast<std::int32_t>(rests_.size());
      rests_.push_back({at + first, size - first});
      waiting_ += size - first;
      size = first;
    }
    do {
      auto const now = std::min(size, piece);
      ends_.push_back(where);
      post(route, requests_.emplace_back(MPI_REQUEST_NULL), at, now, where);
      at += now;
      size -= now;
    } while (size > 0);
  }
  static void post(mpi_route const& route, MPI_Request& request, std::byte* at, std::size_t size, end const& where) {
    auto const bytes = static_cast<int>(size);
    auto const peer = route.group->members[static_cast<std::size_t>(where.peer)];
    route.check(where.receiving ? MPI_Irecv(at, bytes, MPI_BYTE, peer, where.tag, route.group->handle, &request)
                                : MPI_Isend(at, bytes, MPI_BYTE, peer, where.tag, route.group->handle, &request));
  }
  /// Posts the next piece of a message for each of its pieces that is done.
  void go_on(mpi_route const& route) {
    done_.resize(requests_.size());
    int count = 0;
    route.check(
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, done_.data(), MPI_STATUSES_IGNORE));
    for (int i = 0; count != MPI_UNDEFINED && i < count; ++i) {
      auto const slot = static_cast<std::size_t>(done_[static_cast<std::size_t>(i)]);
      if (ends_[slot].rest < 0) continue;
      auto& rest = rests_[static_cast<std::size_t>(ends_[slot].rest)];
      auto const now = std::min(rest.bytes, route.group->piece_bytes);
      if (now == 0) continue;
      post(route, requests_[slot], rest.at, now, ends_[slot]);
      rest.at += now;
      rest.bytes -= now;
      waiting_ -= now;
    }
  }

  std::vector<MPI_Request> requests_;
  std::vector<end> ends_;
  std::vector<remainder> rests_;
  std::vector<int> done_;
  std::size_t waiting_ = 0;  // bytes of messages that are not posted yet
};

/// What rounds travel on. A message is probed for and received at its size, because a call that differs may send more.
class mpi_wire {
 public:
  void begin(mpi_route const& route) noexcept { route_ = &route; }

  void send(int peer, int channel, std::byte const* at, std::size_t bytes) {
    auto const& group = *route_->group;
    route_->check(MPI_Isend(at, static_cast<int>(bytes), MPI_BYTE, group.members[static_cast<std::size_t>(peer)],
                            route_->tag + channel, group.handle, &sends_.emplace_back(MPI_REQUEST_NULL)));
  }
  [[nodiscard]] bool sent() {
    if (sends_.empty()) return true;
    int flag = 0;
    route_->check(MPI_Testall(static_cast<int>(sends_.size()), sends_.data(), &flag, MPI_STATUSES_IGNORE));
    if (flag != 0) sends_.clear();
    return flag != 0;
  }
  [[nodiscard]] bool take(int peer, int channel, std::span<std::byte const>& message) {
    auto const& group = *route_->group;
    int flag = 0;
    if (coming_ == MPI_REQUEST_NULL) {
      MPI_Message found = MPI_MESSAGE_NULL;
      MPI_Status status;
      route_->check(MPI_Improbe(group.members[static_cast<std::size_t>(peer)], route_->tag + channel, group.handle,
                                &flag, &found, &status));
      if (flag == 0) return false;
      route_->check(MPI_Get_count(&status, MPI_BYTE, &bytes_));
      route_->check(MPI_Imrecv(in_.at_least(static_cast<std::size_t>(bytes_)), bytes_, MPI_BYTE, &found, &coming_));
    }
    route_->check(MPI_Test(&coming_, &flag, MPI_STATUS_IGNORE));
    if (flag != 0) message = {in_.data(), static_cast<std::size_t>(bytes_)};
    return flag != 0;
  }
  void compare(int peer, call const& theirs) const {
    if (theirs == route_->what || !asserts(assertion_level::normal)) return;
    auto const rank = route_->group->rank;
    throw comm_error(peer < rank
                         ? differing_calls(mpi_name, route_->printed_number(), peer, theirs, rank, route_->what)
                         : differing_calls(mpi_name, route_->printed_number(), rank, route_->what, peer, theirs));
  }
  [[noreturn]] void refuse(int peer) const {
    throw comm_error(text(mpi_name, ": ", to_string(route_->what), " number ", route_->printed_number(),
                          ": a message of rank ", peer,
                          " has another length or form than that of the same call here; make every rank "
                          "call the same collectives in the same order"));
  }
  /// After a failure: whether MPI is done with all memory. What is coming has been matched, so that it does come.
  [[nodiscard]] bool is_quiet() noexcept {
    bool const sent = are_done(sends_);
    return is_done(coming_) && sent;
  }

 private:
  mpi_route const* route_ = nullptr;
  std::vector<MPI_Request> sends_;
  MPI_Request coming_ = MPI_REQUEST_NULL;
  int bytes_ = 0;
  byte_buffer in_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_MESSAGES_INCLUDED

// ---- trireme/comm/mpi/closing.hpp (goes on)
#ifndef TRIREME_COMM_MPI_NOTICES_INCLUDED
#define TRIREME_COMM_MPI_NOTICES_INCLUDED

// ---- trireme/comm/mpi/notices.hpp
#include <optional>

#ifndef TRIREME_COMM_DETAIL_ROLL_CALL_INCLUDED
#define TRIREME_COMM_DETAIL_ROLL_CALL_INCLUDED

// ---- trireme/comm/detail/roll_call.hpp
namespace trireme::comm::detail {

/// The sets of ranks that are known to be in a call, and of ranks that others wait for. A rank that waits for long
/// sends both sets to other ranks, and merges theirs: the sets only grow, until they are equal on all ranks that wait.
/// Missing ranks are those that others wait for and that none has seen in the call.
class roll_call {
 public:
  void clear() noexcept { bits_.clear(); }

  void begin(int size) {
    if (!bits_.empty()) return;
    words_ = static_cast<std::size_t>(size + 63) / 64;
    bits_.assign(2 * words_, 0);
  }
  void add_here(int rank) noexcept { set(0, rank); }
  void add_wanted(int rank) noexcept { set(words_, rank); }

  /// Both sets, in the form that is sent to other ranks.
  [[nodiscard]] std::span<std::uint64_t const> bits() const noexcept { return bits_; }
  /// Merges another rank's bits() of the same size; returns whether any bit is new.
  bool merge(std::span<std::uint64_t const> theirs) noexcept {
    bool grew = false;
    for (std::size_t i = 0; i < bits_.size(); ++i) {
      grew = grew || (theirs[i] & ~bits_[i]) != 0;
      bits_[i] |= theirs[i];
    }
    return grew;
  }
  [[nodiscard]] bool knows_more_than(std::span<std::uint64_t const> theirs) const noexcept {
    return !std::equal(bits_.begin(), bits_.end(), theirs.begin(), theirs.end());
  }
  void append_missing(std::vector<int>& ranks) const {
    for (int rank = 0; rank < static_cast<int>(words_ * 64) && !bits_.empty(); ++rank)
      if (get(words_, rank) && !get(0, rank)) ranks.push_back(rank);
  }

  /// Calls visit(peer) once for each rank to which this rank sends: those 2^i before it and after it.
  template <class Visit>
  static void for_each_neighbour(int rank, int size, Visit visit) {
    for (int hop = 1; hop < size; hop *= 2) {
      int const after = (rank + hop) % size;
      int const before = (rank - hop + size) % size;
      visit(after);
      if (before != after) visit(before);
    }
  }

 private:
  void set(std::size_t first, int rank) noexcept {
    bits_[first + static_cast<std::size_t>(rank) / 64] |= std::uint64_t{1} << (rank % 64);
  }
  [[nodiscard]] bool get(std::size_t first, int rank) const noexcept {
    return (bits_[first + static_cast<std::size_t>(rank) / 64] >> (rank % 64) & 1U) != 0;
  }

  std::size_t words_ = 0;
  std::vector<std::uint64_t> bits_;  ///< ranks in the call, then ranks that are waited for
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_DETAIL_ROLL_CALL_INCLUDED

// ---- trireme/comm/mpi/notices.hpp (goes on)
#ifndef TRIREME_COMM_MPI_OUTBOX_INCLUDED
#define TRIREME_COMM_MPI_OUTBOX_INCLUDED

// ---- trireme/comm/mpi/outbox.hpp
namespace trireme::comm::detail {

/// Small messages whose sender waits for nobody. Each keeps its bytes until MPI is done with them, because not every
/// MPI copies small messages (MPICH over UCX does not).
class mpi_outbox {
 public:
  /// The only one of this process: messages outlive the world that they come from. Used with the driver's lock held.
  [[nodiscard]] static mpi_outbox& of_process() {
    static auto& only = *new mpi_outbox;
    return only;
  }

  /// Without memory for it the message is not sent.
  void send(MPI_Comm where, int peer, int tag, std::string_view bytes) noexcept try {
    auto& it = pending_.emplace_back();
    it.where = where;
    it.bytes = std::make_unique<std::string>(bytes);
    MPI_Isend(it.bytes->data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag, where, &it.request);
    if (is_done(it.request)) pending_.pop_back();
  } catch (...) {
  }
  /// Forgets what has been sent; whether nothing is left of what goes to ranks of `where`.
  bool sweep(MPI_Comm where = MPI_COMM_NULL) noexcept {
    std::erase_if(pending_, [](auto& each) { return is_done(each.request); });
    for (auto const& each : pending_)
      if (each.where == where) return false;
    return true;
  }
  [[nodiscard]] bool is_empty() const noexcept { return pending_.empty(); }

 private:
  struct pending_send {
    MPI_Comm where = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    std::unique_ptr<std::string> bytes;  // keeps its place when the list grows
  };
  std::vector<pending_send> pending_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_OUTBOX_INCLUDED

// ---- trireme/comm/mpi/notices.hpp (goes on)
namespace trireme::comm::detail {

/// Messages about a failure.
///
/// A failure is flooded: a rank that detects it or receives a notice of it sends it to its 2 ceil(log2(size))
/// neighbours in each group, once. So the number of messages per rank does not depend on how many ranks detect the
/// failure, and notices reach ranks whose other neighbours are dead or busy. If no neighbour sends one, the rank's own
/// deadline ends its wait.
class mpi_notices {
 public:
  static constexpr std::size_t most_bytes = 1024;
  struct notice {
    std::string sentence;
    int from = 0;  ///< as the group's communicator numbers ranks
  };

  /// Sends the first failure to the neighbours in each group, except `received_from`, from which it came. Later ones:
  /// nothing.
  void send_failure(std::span<mpi_group* const> groups, std::string_view sentence, int received_from = -1) noexcept {
    if (has_sent_) return;
    has_sent_ = true;
    for (auto const* group : groups)
      roll_call::for_each_neighbour(group->rank, group->size, [&](int peer) {
        if (member(*group, peer) != received_from)
          send(*group, peer, mpi_tags::failure, sentence.substr(0, most_bytes));
      });
  }
  /// The failure that another rank of the group has sent, if any.
  [[nodiscard]] std::optional<notice> receive_failure(mpi_group const& group) {
    char sentence[most_bytes];
    int bytes = 0;
    int const from = take(group, mpi_tags::failure, sentence, most_bytes, bytes);
    if (from < 0) return std::nullopt;
    return notice{std::string(sentence, static_cast<std::size_t>(bytes)), from};
  }

  /// Tells the neighbours that this rank has left the group, and will make no further calls in it.
  static void send_departure(mpi_group const& group) noexcept {
    char number[sizeof group.next];
    std::memcpy(number, &group.next, sizeof number);
    roll_call::for_each_neighbour(group.rank, group.size, [&](int peer) {
      send(group, peer, mpi_tags::leaves, {number, sizeof number});
    });
  }
  /// Notes in the group which neighbours have left it.
  void receive_departures(mpi_group& group) noexcept {
    char bytes_of[sizeof group.next];
    int bytes = 0;
    for (int from = 0; (from = take(group, mpi_tags::leaves, bytes_of, sizeof bytes_of, bytes)) >= 0;) {
      std::uint64_t number = 0;
      if (bytes != sizeof number) continue;
      std::memcpy(&number, bytes_of, sizeof number);
      if (number < group.without_all) group.without_all = number, group.has_left = from;
    }
  }

  // Which rank prints the error.

  /// Tells the neighbours of higher rank that this rank ends with an error, and so may print it.
  static void send_end(mpi_group const& launch) noexcept {
    roll_call::for_each_neighbour(launch.rank, launch.size, [&](int peer) {
      if (peer > launch.rank) send(launch, peer, mpi_tags::ends, {});
    });
  }
  /// Tells all other ranks that this one prints the error: directly, because its process ends soon, before others could
  /// pass it on. Usually one rank of a launch prints; two may, if they fail at once and no rank between them listens.
  static void send_report(mpi_group const& launch) noexcept {
    for (int rank = 0; rank < launch.size; ++rank)
      if (rank != launch.rank) send(launch, rank, mpi_tags::reports, {});
  }
  /// Receives the notices that have arrived.
  void receive_reports(mpi_group const& launch) noexcept {
    char sentence[most_bytes];
    for (int const tag : {mpi_tags::failure, mpi_tags::ends, mpi_tags::reports})
      for (int bytes = 0; take(launch, tag, sentence, most_bytes, bytes) >= 0;) {
      }
  }
  /// The lowest rank that has sent a failure, or that it ends.
  [[nodiscard]] int lowest_failed() const noexcept { return lowest_failed_; }
  [[nodiscard]] bool another_reports() const noexcept { return reported_; }

  /// Receives a message of at most `room` bytes that has arrived; returns its sender, or -1.
  [[nodiscard]] int take(mpi_group const& group, int tag, char* to, std::size_t room, int& bytes) noexcept {
    int flag = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, tag, group.handle, &flag, &status) != MPI_SUCCESS || flag == 0) return -1;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    int const from = status.MPI_SOURCE;
    // No notice is longer: such a message is received, so that it does not block others, and ignored.
    bool const fits = bytes >= 0 && static_cast<std::size_t>(bytes) <= room;
    bytes = std::min(std::max(bytes, 0), static_cast<int>(room));
    MPI_Recv(to, bytes, MPI_BYTE, from, tag, group.handle, MPI_STATUS_IGNORE);
    if (!fits) return -1;
    note(tag, from);
    return from;
  }
  /// Notes the sender of a message that was received elsewhere.
  void note(int tag, int from) noexcept {
    if (tag <= mpi_tags::reports) lowest_failed_ = std::min(lowest_failed_, from);
    if (tag == mpi_tags::reports) reported_ = true;
  }

 private:
  [[nodiscard]] static int member(mpi_group const& group, int rank) noexcept {
    return group.members[static_cast<std::size_t>(rank)];
  }
  static void send(mpi_group const& group, int peer, int tag, std::string_view what) noexcept {
    mpi_outbox::of_process().send(group.handle, member(group, peer), tag, what);
  }

  bool has_sent_ = false;
  bool reported_ = false;
  int lowest_failed_ = std::numeric_limits<int>::max();
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_NOTICES_INCLUDED

// ---- trireme/comm/mpi/closing.hpp (goes on)
#ifndef TRIREME_COMM_MPI_OPERATION_INCLUDED
#define TRIREME_COMM_MPI_OPERATION_INCLUDED

// ---- trireme/comm/mpi/operation.hpp
#ifndef TRIREME_COMM_MPI_NATIVE_INCLUDED
#define TRIREME_COMM_MPI_NATIVE_INCLUDED

// ---- trireme/comm/mpi/native.hpp
#include <array>

namespace trireme::comm::detail {

/// Which calls MPI's own non-blocking collectives carry. docs/communicators.md has the measurements: on TCP large
/// collectives of MPI were not quicker than ours (but for one case of 77 ms to 79 ms), and small ones would have to
/// wait for the comparison of calls. So there is no row for what does not depend on an order (broadcast, gathers), and
/// none for reduce_scatter, in which MPI's took up to four times as long.
struct native_row {
  collective kind;
  sum_order order;         ///< which the description must ask for; `ranks`: need not
  std::size_t from_bytes;  ///< of the whole view
};
inline constexpr native_row native_rows[] = {
    {collective::all_reduce, sum_order::any, std::size_t{256} << 10},
};

/// The type as which MPI adds up, if it gives the results of the kernels in `ops` (but for the order); otherwise
/// MPI_DATATYPE_NULL. Signed integers are added as unsigned ones, because sums wrap; 8-bit ones are left out, because
/// Open MPI 4.1 saturates them. So are minima and maxima: MPI says nothing of NaN, and MPICH 4.0 compares unsigned
/// integers as signed. (The ladder found both.)
[[nodiscard]] inline MPI_Datatype native_type(dtype type, reduction_kind op) noexcept {
  if (op != reduction_kind::sum && op != reduction_kind::mean) return MPI_DATATYPE_NULL;
  switch (type) {
    case dtype::f64:
      return MPI_DOUBLE;
    case dtype::f32:
      return MPI_FLOAT;
    case dtype::i64:
    case dtype::u64:
      return MPI_UINT64_T;
    case dtype::i32:
    case dtype::u32:
      return MPI_UINT32_T;
    default:
      return MPI_DATATYPE_NULL;
  }
}

/// A large all_reduce by MPI's own. It begins when calls have been compared, so that all ranks are there, and goes in
/// segments, two of them at a time. MPI writes into memory of this class, which is kept if the call fails, because a
/// collective of MPI cannot be cancelled. (That memory is also quicker: with separate input and output Open MPI sends
/// 2 n (p - 1) / p bytes a rank; in place it sends all n up to log2(p) times.)
class mpi_native {
 public:
  [[nodiscard]] static bool suits(mpi_group const& group, command const& it) noexcept {
    if (!group.is_whole || native_type(it.what.type, it.what.op) == MPI_DATATYPE_NULL) return false;
    return std::ranges::any_of(native_rows, [&](native_row const& row) {
      return row.kind == it.what.kind && (row.order == sum_order::ranks || row.order == group.order) &&
             static_cast<std::size_t>(it.what.count) * it.element_bytes >= row.from_bytes;
    });
  }

  /// Queues the call: collectives of MPI must begin in one order on all ranks.
  void begin(mpi_route const& route, mpi_group& group, command const& it) {
    route_ = &route;
    group_ = &group;
    it_ = it;
    each_ = static_cast<std::int64_t>(segment_bytes / it.element_bytes);
    segments_ = (it.what.count + each_ - 1) / each_;
    started_ = finished_ = 0;
    group.native_line.push_back(route.number);
  }
  /// Makes the progress that is possible now; true if all is done.
  bool advance() {
    for (;;) {
      while (started_ < segments_ && started_ < finished_ + in_flight &&
             group_->native_line.front() == route_->number) {
        start(started_++);
        if (started_ == segments_) group_->native_line.erase(group_->native_line.begin());
      }
      if (finished_ == segments_) return true;
      if (finished_ == started_) return false;
      auto& it = flights_[static_cast<std::size_t>(finished_ % in_flight)];
      int flag = 0;
      route_->check(MPI_Test(&it.request, &flag, MPI_STATUS_IGNORE));
      if (flag == 0) return false;
      take(finished_++);
    }
  }
  /// After a failure: whether MPI is done with all memory. It is not while other ranks have not begun the collective,
  /// which cannot be cancelled.
  [[nodiscard]] bool is_quiet() noexcept {
    bool all = true;
    for (auto& each : flights_) all = is_done(each.request) && all;
    return all;
  }

 private:
  static constexpr std::size_t segment_bytes = std::size_t{4} << 20;
  static constexpr std::int64_t in_flight = 2;
  struct flight_of_a_segment {
    MPI_Request request = MPI_REQUEST_NULL;
    byte_buffer result;
  };

  [[nodiscard]] std::size_t bytes(std::int64_t count) const noexcept {
    return static_cast<std::size_t>(count) * it_.element_bytes;
  }
  [[nodiscard]] interval segment(std::int64_t index) const noexcept {
    return {index * each_, std::min(each_, it_.what.count - index * each_)};
  }
  void start(std::int64_t index) {
    auto& it = flights_[static_cast<std::size_t>(index % in_flight)];
    auto const part = segment(index);
    auto* const result = it.result.at_least(bytes(std::min(each_, it_.what.count)));
    route_->check(MPI_Iallreduce(static_cast<std::byte const*>(it_.from) + bytes(part.first), result,
                                 static_cast<int>(part.count), native_type(it_.what.type, it_.what.op), MPI_SUM,
                                 group_->handle, &it.request));
  }
  /// Copies a result to where it belongs; a mean is divided on the way.
  void take(std::int64_t index) {
    auto const part = segment(index);
    void* const to = static_cast<std::byte*>(it_.to) + bytes(part.first);
    void const* const sum = flights_[static_cast<std::size_t>(index % in_flight)].result.data();
    it_.elements->combine({&to, 1}, {&sum, 1}, part.count, it_.divisor != 0 ? it_.divisor : group_->size);
  }

  mpi_route const* route_ = nullptr;
  mpi_group* group_ = nullptr;
  command it_;
  std::int64_t each_ = 1;  // elements
  std::int64_t segments_ = 0;
  std::int64_t started_ = 0;
  std::int64_t finished_ = 0;
  std::array<flight_of_a_segment, in_flight> flights_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_NATIVE_INCLUDED

// ---- trireme/comm/mpi/operation.hpp (goes on)
#ifndef TRIREME_COMM_MPI_REDUCTION_INCLUDED
#define TRIREME_COMM_MPI_REDUCTION_INCLUDED

// ---- trireme/comm/mpi/reduction.hpp
namespace trireme::comm::detail {

/// A large all_reduce, reduce_scatter or reduce, in rank order, chunk by chunk while the next chunks are under way.
///
/// On one machine (and wherever partial sums would not pay) each rank works on its own slice of the values: it receives
/// the terms of all others, adds them up, and sends the result to those that want it.
///
/// On several machines partial sums are carried from machine to machine. With `local_size` ranks on each machine, place
/// j of every machine works on share j of the values: it receives the terms of the other ranks of its machine, adds all
/// of them to the partial sum that comes from place j of the machine before, and sends that on. The last machine has
/// the result. The result of an all_reduce goes round: last machine, 0, 1, ...; that of a reduce_scatter goes to the
/// machine of its owner. One machine is the case in which nothing is carried.
///
/// Bytes    sent by a machine to others, of n bytes of values, if carried: all_reduce 2 n at most, reduce_scatter n
///          (the last machine: only results, less than n); about `local_size` times as much if not. Partial sums of
///          16-bit floats travel as float: 3 n and 2 n.
/// Kept     by each call in flight: 3 chunks, each of a term of each rank (64 KiB to 512 KiB). If carried: 4 to 64
///          chunks (two a machine, and two more), each of `local_size` terms and two partial sums, of at most 480 KiB
///          (partial sums of 16-bit floats: 960 KiB): 17 MiB on 2 machines of 4 ranks, 51 MiB on 8.
/// Numerics the same bits either way: the same additions in the same order. (One sum of each machine would not do, but
///          a machine can continue the partial sum of the one before.)
class mpi_reduction {
 public:
  /// The least size of a carried chunk. Smaller ones cost more in messages than they save in waiting.
  static constexpr std::size_t least_bytes = std::size_t{16} << 10;

  /// Whether carrying sends fewer bytes between machines, and there are enough chunks to keep all machines busy.
  [[nodiscard]] static bool is_carried(mpi_group const& group, command const& it) noexcept {
    auto const kind = it.what.kind;
    if (group.local_size < 2 || group.size <= group.local_size || it.what.op == reduction_kind::pairwise) return false;
    if (kind != collective::all_reduce && kind != collective::reduce_scatter) return false;
    auto const machines = static_cast<std::size_t>(group.size / group.local_size);
    if (kind == collective::reduce_scatter && widens(it) &&
        static_cast<std::size_t>(group.local_size) * (machines - 1) <= 2 * machines)
      return false;
    auto const share =
        static_cast<std::size_t>(it.what.count) * it.element_bytes / static_cast<std::size_t>(group.local_size);
    return share >= 2 * machines * least_bytes;
  }

  void begin(mpi_route const& route, command const& it, geometry const& cuts) {
    route_ = &route;
    it_ = it;
    bool const carried = is_carried(*route.group, it);
    local_size_ = carried ? route.group->local_size : route.group->size;
    local_rank_ = route.group->rank % local_size_;
    machine_ = route.group->rank / local_size_;
    machines_ = route.group->size / local_size_;
    widened_ = carried && widens(it);
    partial_bytes_ = !carried ? 0 : widened_ ? sizeof(float) : it.element_bytes;
    raw_transfers_ = is_scattered() ? machines_ : 1;
    slices_.clear();
    for (int rank = 0; is_scattered() && rank < route.group->size; ++rank) slices_.push_back(cuts.owned(rank));
    auto const part = is_scattered() ? cuts.largest() : slice_of_local_rank(0).count;
    auto const wanted = carried ? std::clamp(bytes(part) * static_cast<std::size_t>(raw_transfers_) /
                                                 static_cast<std::size_t>(8 * machines_),
                                             least_bytes, largest_bytes)
                                : std::clamp((std::size_t{2} << 20) / static_cast<std::size_t>(local_size_),
                                             std::size_t{64} << 10, std::size_t{512} << 10);
    chunk_ = static_cast<std::int64_t>(wanted / 64) * line_of(it.element_bytes);
    pieces_of_part_ = (part + chunk_ - 1) / chunk_;
    chunks_ = pieces_of_part_ * raw_transfers_;
    flights_.resize(carried ? static_cast<std::size_t>(std::clamp(2 * machines_ + 2, 4, 64)) : 3);
    area_ = static_cast<std::size_t>(chunk_) *
            (it.element_bytes * static_cast<std::size_t>(local_size_) + 2 * partial_bytes_);
    static_cast<void>(slots_.at_least(flights_.size() * area_));
    if (widened_)
      static_cast<void>(wide_.at_least(sizeof(float) * static_cast<std::size_t>(chunk_ * (local_size_ + 1))));
    finished_ = folded_ = passed_ = next_ = 0;
    collect_next();
  }

  /// Makes the progress that is possible now; true if all is done.
  bool advance() {
    for (auto chunk = finished_; chunk < next_; ++chunk) {
      auto& it = flight(chunk);
      // Messages between two ranks are in the order of the chunks, so each stage is, too.
      if (it.at == stage::collecting && chunk == folded_ && it.terms.done(*route_)) {
        fold(chunk);
        ++folded_;
      }
      if (it.at == stage::carrying && chunk == passed_ && it.result.done(*route_)) {
        pass_on(chunk);
        ++passed_;
      }
      if (it.at == stage::spreading && it.terms.done(*route_) && it.result.done(*route_)) it.at = stage::done;
    }
    while (finished_ < next_ && flight(finished_).at == stage::done) ++finished_;
    collect_next();
    return finished_ == chunks_;
  }
  void append_late(std::vector<int>& peers, bool receiving) const {
    for (auto chunk = finished_; chunk < next_; ++chunk)
      for (auto const* each : {&flight(chunk).terms, &flight(chunk).result}) each->append_late(peers, receiving);
  }
  void cancel() noexcept {
    for (auto& each : flights_) {
      each.terms.cancel();
      each.result.cancel();
    }
  }
  [[nodiscard]] bool is_quiet() noexcept {
    bool all = true;
    for (auto& each : flights_)
      for (auto* messages : {&each.terms, &each.result}) all = messages->is_quiet() && all;
    return all;
  }

 private:
  // 8 messages of MPI, or 16 for a float partial sum of 16-bit values: as many as mpi_messages has in flight at once.
  static constexpr std::size_t largest_bytes = 8 * mpi_group::unasked;
  enum class stage : std::uint8_t { collecting, carrying, spreading, done };
  struct chunk_in_flight {
    mpi_messages terms;   ///< receives terms and the partial sum; then sends what this rank has formed
    mpi_messages result;  ///< receives the result from another machine; then spreads it on this one
    stage at = stage::done;
  };

  /// Whether partial sums are wider than values.
  [[nodiscard]] static bool widens(command const& it) noexcept {
    bool const sums = it.what.op == reduction_kind::sum || it.what.op == reduction_kind::mean;
    return sums && (it.what.type == dtype::bf16 || it.what.type == dtype::f16);
  }
  [[nodiscard]] bool is_scattered() const noexcept { return it_.what.kind == collective::reduce_scatter; }
  [[nodiscard]] bool is_last() const noexcept { return machine_ + 1 == machines_; }
  [[nodiscard]] std::size_t bytes(std::int64_t count) const noexcept {
    return static_cast<std::size_t>(count) * it_.element_bytes;
  }
  [[nodiscard]] int rank_of(int machine, int local_rank) const noexcept { return machine * local_size_ + local_rank; }
  [[nodiscard]] chunk_in_flight& flight(std::int64_t chunk) noexcept {
    return flights_[static_cast<std::size_t>(chunk) % flights_.size()];
  }
  [[nodiscard]] chunk_in_flight const& flight(std::int64_t chunk) const noexcept {
    return flights_[static_cast<std::size_t>(chunk) % flights_.size()];
  }
  [[nodiscard]] interval slice_of_local_rank(int local_rank) const noexcept {
    return slice_of(it_.what.count, it_.element_bytes, local_rank, local_size_);
  }
  /// The machine whose rank of this place gets a chunk of a reduce_scatter.
  [[nodiscard]] int owner_of(std::int64_t chunk) const noexcept { return static_cast<int>(chunk / pieces_of_part_); }
  [[nodiscard]] interval chunk_of(int local_rank, std::int64_t chunk) const noexcept {
    auto const all = is_scattered() ? slices_[static_cast<std::size_t>(rank_of(owner_of(chunk), local_rank))]
                                    : slice_of_local_rank(local_rank);
    auto const begin = std::min(all.count, chunk % pieces_of_part_ * chunk_);
    return {all.first + begin, std::min(chunk_, all.count - begin)};
  }
  // What a flight keeps: a term of each place, and two partial sums. The slot of the own term is free for a result that
  // does not belong into the own values.
  [[nodiscard]] std::byte* term_buffer(std::int64_t chunk, int local_rank) const noexcept {
    return slots_.data() + static_cast<std::size_t>(chunk) % flights_.size() * area_ +
           static_cast<std::size_t>(local_rank) * bytes(chunk_);
  }
  [[nodiscard]] std::byte* partial_buffer(std::int64_t chunk, bool comes) const noexcept {
    return term_buffer(chunk, local_size_) + (comes ? 0 : static_cast<std::size_t>(chunk_) * partial_bytes_);
  }
  [[nodiscard]] std::byte* to(std::int64_t first) const noexcept {
    return static_cast<std::byte*>(it_.to) + bytes(first);
  }
  [[nodiscard]] std::byte const* from(std::int64_t first) const noexcept {
    return static_cast<std::byte const*>(it_.from) + bytes(first);
  }
  /// Whether a chunk's result belongs to this machine.
  [[nodiscard]] bool is_mine(std::int64_t chunk) const noexcept {
    return !is_scattered() || owner_of(chunk) == machine_;
  }
  /// Whether the rank of a place on this machine gets the results of all: in a reduce, which is not carried, the root.
  [[nodiscard]] bool takes_all(int local_rank) const noexcept {
    return it_.what.kind != collective::reduce || local_rank == it_.what.root;
  }
  /// Where the sum of a chunk is formed on the last machine.
  [[nodiscard]] std::byte* result_of(std::int64_t chunk, interval mine) const noexcept {
    return is_mine(chunk) && takes_all(local_rank_) ? to(mine.first) : term_buffer(chunk, local_rank_);
  }

  void collect_next() {
    while (next_ < chunks_ && next_ < finished_ + static_cast<std::int64_t>(flights_.size())) collect(next_++);
  }
  void collect(std::int64_t chunk) {
    auto& it = flight(chunk);
    it.at = stage::collecting;
    auto const mine = chunk_of(local_rank_, chunk);
    for_each_other(local_rank_, local_size_, [&](int source, int target) {
      if (mine.count > 0)
        it.terms.receive(*route_, term_buffer(chunk, source), bytes(mine.count), rank_of(machine_, source),
                         route_->tag + 1);
      if (auto const theirs = chunk_of(target, chunk); theirs.count > 0)
        it.terms.send(*route_, from(theirs.first), bytes(theirs.count), rank_of(machine_, target), route_->tag + 1);
    });
    if (machine_ > 0 && mine.count > 0)
      it.terms.receive(*route_, partial_buffer(chunk, true), static_cast<std::size_t>(mine.count) * partial_bytes_,
                       rank_of(machine_ - 1, local_rank_), route_->tag + 1);
  }

  void fold(std::int64_t chunk) {
    auto& it = flight(chunk);
    it.at = stage::carrying;
    auto const mine = chunk_of(local_rank_, chunk);
    if (mine.count > 0) {
      auto* const result = is_last() ? result_of(chunk, mine) : partial_buffer(chunk, false);
      combine(chunk, mine, result);
      if (!is_last())
        it.terms.send(*route_, result, static_cast<std::size_t>(mine.count) * partial_bytes_,
                      rank_of(machine_ + 1, local_rank_), route_->tag + 1);
      else if (!is_mine(chunk))
        it.terms.send(*route_, result, bytes(mine.count), rank_of(owner_of(chunk), local_rank_), route_->tag + 2);
      else if (!is_scattered() && machines_ > 1)
        it.terms.send(*route_, result, bytes(mine.count), rank_of(0, local_rank_), route_->tag + 2);
      if (!is_last() && is_mine(chunk))
        it.result.receive(*route_, to(mine.first), bytes(mine.count),
                          rank_of(is_scattered() || machine_ == 0 ? machines_ - 1 : machine_ - 1, local_rank_),
                          route_->tag + 2);
    }
  }
  void combine(std::int64_t chunk, interval mine, std::byte* result) {
    terms_.clear();
    if (machine_ > 0) terms_.push_back(partial_buffer(chunk, true));
    auto* wide = elements_at<float>(wide_.data());
    for (int local_rank = 0; local_rank < local_size_; ++local_rank) {
      std::byte const* term = local_rank == local_rank_ ? from(mine.first) : term_buffer(chunk, local_rank);
      if (widened_) {
        widen(wide, term, mine.count);
        term = reinterpret_cast<std::byte const*>(wide);
        wide += chunk_;
      }
      terms_.push_back(term);
    }
    auto const divisor = !is_last() ? 1 : it_.divisor != 0 ? it_.divisor : route_->group->size;
    void* out = widened_ && is_last() ? static_cast<void*>(wide) : result;
    if (!widened_)
      it_.elements->combine({&out, 1}, terms_, mine.count, divisor);
    else if (it_.what.op == reduction_kind::mean)
      reducing_kernels<float, host, reduction::mean>.combine({&out, 1}, terms_, mine.count, divisor);
    else
      reducing_kernels<float, host, reduction::sum>.combine({&out, 1}, terms_, mine.count, divisor);
    if (widened_ && is_last()) narrow(result, wide, mine.count);
  }
  /// Calls convert(T{}) for the type of the values.
  template <class Convert>
  void with_type(Convert convert) const {
    it_.what.type == dtype::bf16 ? convert(bfloat16{}) : convert(float16{});
  }
  void widen(float* to, std::byte const* from, std::int64_t count) const {
    with_type([&]<class T>(T) {
      auto const* const values = elements_at<T>(from);
      std::transform(values, values + count, to, [](T each) { return static_cast<float>(each); });
    });
  }
  void narrow(std::byte* to, float const* from, std::int64_t count) const {
    with_type([&]<class T>(T) {
      std::transform(from, from + count, elements_at<T>(to), [](float each) { return static_cast<T>(each); });
    });
  }

  /// The result of this rank's chunk has come, or belongs to another machine.
  void pass_on(std::int64_t chunk) {
    auto& it = flight(chunk);
    it.at = stage::spreading;
    if (is_scattered()) return;
    auto const mine = chunk_of(local_rank_, chunk);
    if (machine_ + 2 < machines_ && mine.count > 0)
      it.result.send(*route_, to(mine.first), bytes(mine.count), rank_of(machine_ + 1, local_rank_), route_->tag + 2);
    for_each_other(local_rank_, local_size_, [&](int source, int target) {
      if (auto const theirs = chunk_of(source, chunk); theirs.count > 0 && takes_all(local_rank_))
        it.result.receive(*route_, to(theirs.first), bytes(theirs.count), rank_of(machine_, source), route_->tag + 2);
      if (mine.count > 0 && takes_all(target))
        it.result.send(*route_, result_of(chunk, mine), bytes(mine.count), rank_of(machine_, target), route_->tag + 2);
    });
  }

  mpi_route const* route_ = nullptr;
  command it_;
  int local_rank_ = 0, local_size_ = 1, machine_ = 0, machines_ = 1, raw_transfers_ = 1;
  bool widened_ = false;  ///< partial sums are float
  std::size_t partial_bytes_ = 1;
  std::size_t area_ = 0;    ///< bytes that a flight keeps
  std::int64_t chunk_ = 1;  ///< elements
  std::int64_t pieces_of_part_ = 0;
  std::int64_t chunks_ = 0;
  std::int64_t next_ = 0;         ///< the next chunk to begin
  std::int64_t folded_ = 0;       ///< the next one to add up
  std::int64_t passed_ = 0;       ///< the next one whose result comes
  std::int64_t finished_ = 0;     ///< all chunks below are finished
  std::vector<interval> slices_;  ///< of a reduce_scatter: of each rank
  std::vector<chunk_in_flight> flights_;
  byte_buffer slots_, wide_;
  std::vector<void const*> terms_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_REDUCTION_INCLUDED

// ---- trireme/comm/mpi/operation.hpp (goes on)
namespace trireme::comm::detail {

/// Consecutive elements in memory of the caller.
struct stretch {
  std::byte* at = nullptr;
  std::int64_t count = 0;
};

/// One rank's part in one command, as stages of messages that never block. A collective begins with rounds, which
/// compare calls and carry small values; then large values move; then a broadcast passes on its slices. An exchange
/// announces each of its messages to the receiver.
///
/// MPI gets the caller's memory only when the other side is in the call and its call matches, for two reasons: a
/// message longer than its receiver expects ends the program in some MPIs; and a send cannot be cancelled, so that a
/// late rank would still receive from memory which the caller has freed after the error.
class mpi_operation final : public collective_operation {
 public:
  mpi_group* where = nullptr;
  mpi_route route;
  std::atomic<bool> finished{false};
  bool reported_late = false;
  bool is_given_up = false;         ///< its group has failed, and may not exist any more: call only is_quiet()
  MPI_Comm handle = MPI_COMM_NULL;  ///< in which its messages travel
  roll_call roll;
  clock::time_point next_roll{};

  /// Takes its number and posts the first messages. Called, as all below, with the driver's lock held.
  void begin(mpi_group& group, command const& it) {
    where = &group;
    handle = group.handle;
    it_ = it;
    raw_transfers_.assign(it.raw_transfers.begin(), it.raw_transfers.end());
    counts_.assign(it.counts.begin(), it.counts.end());
    it_.counts = counts_;
    firsts_.resize(counts_.size());
    std::exclusive_scan(counts_.begin(), counts_.end(), firsts_.begin(), std::int64_t{0});
    touched_ = it.elements != nullptr && it.elements->touchable;
    headers_.clear();
    first_.clear();
    second_.clear();
    acknowledgements_.clear();
    roll.clear();
    next_roll = {};
    at_ = stage::announcing;
    finished.store(false, std::memory_order_relaxed);
    reported_late = false;
    large_ = large_method::moved;
    is_large_ = false;
    if (it.what.kind == collective::exchange) {
      route = {where, it.what, where->next_exchange++, mpi_tags::exchange};
      begin_exchange();
      return;
    }
    auto const number = where->next++;
    route = {where, it.what, number, where->tag_of(number)};
    wire_.begin(route);
    begin_rounds();
    if (!touched_ || of().count == 0 || (carries() && !has_transfers())) return;
    if (does().folds) large_ = mpi_native::suits(*where, it_) ? large_method::native : large_method::reduced;
    if (large_ == large_method::native) native_.begin(route, *where, it_);
    is_large_ = true;
  }

  /// Makes the progress that is possible now. Throws comm_error.
  void advance() {
    if (at_ == stage::announcing && (is_exchange() ? advance_exchange() : rounds_.advance(wire_))) {
      at_ = !is_exchange() && (touched_ || has_transfers()) ? take_small() : stage::carrying;
      if (is_large_ && at_ == stage::carrying) begin_large();
    }
    if (at_ == stage::counting && headers_.done(route)) expect_equal_counts();
    if (at_ == stage::gathering && rounds_.advance(wire_)) {
      rounds_.for_each_block([&](int peer, std::byte const* block) {
        auto const transfer = cuts().owned(peer);
        if (transfer.count > 0 && cuts().takes(does(), rank()))
          std::memcpy(to(transfer.first), block, bytes(transfer.count));
      });
      at_ = stage::carrying;
    }
    if (at_ == stage::carrying && advance_large()) {
      if (is_broadcast() && touched_ && !carries() && rank() != it_.what.root) forward();
      at_ = stage::spreading;
    }
    if (at_ == stage::spreading && second_.done(route)) finished.store(true, std::memory_order_release);
  }

  /// Whether ranks that wait for a long time ask who is missing. Not in an exchange, which waits only for its peers.
  [[nodiscard]] bool calls_roll() const noexcept { return !is_exchange(); }
  /// Adds this rank, and those that it waits for. While calls are compared, or while a collective of MPI is in flight,
  /// these are all ranks, because each rank may wait for others that wait themselves.
  void enter_roll() {
    roll.begin(size());
    roll.add_here(rank());
    bool const of_all = at_ == stage::announcing || (at_ == stage::carrying && large_ == large_method::native);
    for (int const peer : of_all ? std::vector<int>{} : waited_for()) roll.add_wanted(peer);
    for (int peer = 0; of_all && peer < size(); ++peer) roll.add_wanted(peer);
  }

  /// The ranks that are missing, ascending; empty if it is not known which.
  [[nodiscard]] std::vector<int> missing_ranks() const {
    std::vector<int> late;
    roll.append_missing(late);
    if (late.empty()) late = waited_for();
    std::ranges::sort(late);
    late.erase(std::unique(late.begin(), late.end()), late.end());
    return late;
  }
  /// "rank 1", "ranks 1, 3", "the others"
  [[nodiscard]] std::string missing() const {
    auto const late = missing_ranks();
    return late.empty() ? "the others" : list_of("rank", late);
  }

  /// What it is, while its driver waits for it.
  [[nodiscard]] late_call as_late() const {
    return {rank(), text(to_string(route.what), " number ", route.printed_number(), to_string(route.what.label)),
            bytes(it_.what.count), missing()};
  }

  /// After a failure: cancels what MPI can cancel, so that it does not write to the caller's memory any more. Until
  /// is_quiet() MPI may still use memory of this operation and of the caller.
  /// @param may_call  whether this thread may call MPI; otherwise nothing is cancelled.
  void give_up(bool may_call) noexcept {
    is_given_up = true;
    if (!may_call) return;
    for (auto* each : {&headers_, &first_, &second_}) each->cancel();
    reduction_.cancel();
    for (auto& each : acknowledgements_)
      if (each != MPI_REQUEST_NULL) MPI_Cancel(&each);
  }
  [[nodiscard]] bool is_quiet() noexcept {
    bool all = wire_.is_quiet();
    for (auto* each : {&headers_, &first_, &second_}) all = each->is_quiet() && all;
    all = are_done(acknowledgements_) && all;
    all = reduction_.is_quiet() && all;
    return native_.is_quiet() && all;
  }

 private:
  /// announcing -> carrying -> spreading; between them telling, in a ragged all_to_all whose counts differ (which ends
  /// in an error), or gathering the results of an all_reduce or reduce of middle size.
  enum class stage : std::uint8_t { announcing, counting, gathering, carrying, spreading };
  using round_kind = round_blocks::round_kind;
  /// How large values go: moved between each two ranks; reduced (reduction.hpp); or by MPI's own collective.
  enum class large_method : std::uint8_t { moved, reduced, native };
  struct message_head {
    std::int64_t count;
    std::uint32_t carried;  ///< bytes behind it
    std::uint8_t type;      ///< a dtype, or any number in a damaged message
  };
  /// A message of an exchange of at most this size travels with its announcement.
  static constexpr std::size_t announced_bytes = std::size_t{16} << 10;
  static constexpr std::size_t capacity = sizeof(message_head) + announced_bytes;
  /// A broadcast of at most this size travels whole in the rounds; a larger one is scattered and gathered.
  static constexpr std::size_t gathered_whole_bytes = std::size_t{16} << 10;

  [[nodiscard]] int rank() const noexcept { return where->rank; }
  [[nodiscard]] int size() const noexcept { return where->size; }
  [[nodiscard]] std::size_t bytes(std::int64_t count) const noexcept {
    return static_cast<std::size_t>(count) * it_.element_bytes;
  }
  [[nodiscard]] std::byte* from(std::int64_t first) const noexcept {
    return const_cast<std::byte*>(static_cast<std::byte const*>(it_.from)) + bytes(first);
  }
  [[nodiscard]] std::byte* to(std::int64_t first) const noexcept {
    return static_cast<std::byte*>(it_.to) + bytes(first);
  }
  [[nodiscard]] bool is_exchange() const noexcept { return it_.what.kind == collective::exchange; }
  [[nodiscard]] bool has_transfers() const noexcept {
    return it_.what.kind == collective::all_to_all && !raw_transfers_.empty();
  }
  [[nodiscard]] geometry cuts() const noexcept { return {it_.what, it_.element_bytes, size(), counts_, firsts_}; }
  [[nodiscard]] row const& of() const noexcept { return row_of(it_.what.kind); }
  [[nodiscard]] move const& does() const noexcept { return of().moves[0]; }
  [[nodiscard]] bool carries() const noexcept { return rounds_.how() != round_kind::nothing; }

  // --- rounds

  /// What the rounds carry, the same on every rank.
  void choose(round_blocks& blocks) const {
    if ((!touched_ && !has_transfers()) || of().count == 0) return;
    auto const where_cut = cuts();
    auto const whole = bytes(it_.what.count);
    auto const all = bytes(where_cut.all());
    auto const carry = [&](round_kind how, std::size_t each) {
      blocks.how = how;
      blocks.each = each;
    };
    auto const cut_as_owned = [&] {
      bool const uneven = !counts_.empty() || of().into == cut::lines;
      for (int peer = 0; uneven && peer < size(); ++peer) blocks.sizes.push_back(bytes(where_cut.owned_count(peer)));
    };
    if (has_transfers()) {  // whether all counts fit each other
      carry(round_kind::gathered, sizeof(std::uint64_t));
    } else if (does().senders == side::root) {
      bool const distributes = does().given == region::of_receiver;
      if (distributes ? all <= gathered_bytes : whole <= gathered_whole_bytes)
        carry(round_kind::gathered, distributes ? all : whole);
      blocks.only = it_.what.root;
    } else if (gathers_terms(where_cut)) {
      carry(round_kind::gathered, whole);
    } else if (auto const block = bytes(where_cut.largest()); does().given == region::of_sender) {
      if (all <= gathered_bytes || block <= distributed_bytes) carry(round_kind::gathered, block);
      if (blocks.how == round_kind::gathered) cut_as_owned();
    } else if (distributes_blocks(where_cut)) {
      carry(round_kind::distributed, block);
      cut_as_owned();
    }
  }

  void begin_rounds() {
    auto& blocks = rounds_.prepare();
    choose(blocks);
    rounds_.place(route.what, rank(), size());
    if (has_transfers() && carries()) {
      auto const sum = sum_of_parts();
      std::memcpy(rounds_.own(), &sum, sizeof sum);
    } else if (blocks.how == round_kind::gathered) {
      auto const first = does().given == region::of_sender ? cuts().owned(rank()).first : 0;
      if (auto const mine = blocks.of(rank()); mine > 0) std::memcpy(rounds_.own(), from(first), mine);
    } else if (blocks.how == round_kind::distributed) {
      for (int peer = 0; peer < size(); ++peer)
        if (auto const given = does().folds ? cuts().owned(peer) : cuts().given(does(), rank(), peer); given.count > 0)
          std::memcpy(rounds_.block_for(peer), from(given.first), bytes(given.count));
    }
    rounds_.begin(wire_, 0);
  }

  /// Puts values that travelled in rounds, or with announcements, in their places, or combines them; what comes next.
  [[nodiscard]] stage take_small() {
    if (!carries()) return stage::carrying;
    if (has_transfers()) return all_transfers_fit() ? stage::carrying : send_counts();
    auto const where_cut = cuts();
    if (does().folds) {
      bool const distributed = rounds_.how() == round_kind::distributed;
      bool const takes = where_cut.takes(does(), rank());
      auto const mine = distributed ? where_cut.owned(rank()) : interval{0, it_.what.count};
      auto* const result = takes ? to(mine.first) : distributed ? sent_.at_least(bytes(mine.count)) : nullptr;
      if (result != nullptr) combine_blocks(result, mine.count);
      return distributed && of().into == cut::lines ? gather_results(result, bytes(mine.count)) : stage::carrying;
    }
    rounds_.for_each_block([&](int peer, std::byte const* block) {
      auto const taken = where_cut.taken(does(), peer, rank());
      if (taken.count == 0 || (peer == rank() && does().given == does().taken)) return;
      bool const whole_came = rounds_.how() == round_kind::gathered && does().given == region::of_receiver;
      auto const skip = whole_came ? where_cut.given(does(), peer, rank()).first : 0;
      std::memcpy(to(taken.first), block + bytes(skip), bytes(taken.count));
    });
    return stage::carrying;
  }
  void combine_blocks(void* result, std::int64_t count) {
    if (count == 0) return;
    terms_.resize(static_cast<std::size_t>(size()));
    rounds_.for_each_block([&](int peer, std::byte const* block) { terms_[static_cast<std::size_t>(peer)] = block; });
    it_.elements->combine({&result, 1}, terms_, count, it_.divisor != 0 ? it_.divisor : size());
  }
  /// An all_reduce or reduce of middle size: each rank has reduced its slice, and now all gather them.
  [[nodiscard]] stage gather_results(std::byte const* result, std::size_t length) {
    auto& blocks = rounds_.prepare();
    blocks.how = round_kind::gathered;
    for (int peer = 0; peer < size(); ++peer) blocks.sizes.push_back(bytes(cuts().owned_count(peer)));
    rounds_.place(route.what, rank(), size());
    if (length > 0) std::memcpy(rounds_.own(), result, length);
    rounds_.begin(wire_, 1);
    return stage::gathering;
  }

  // --- ragged all_to_all: if all counts match, the sums of all ranks add up to 0

  [[nodiscard]] std::uint64_t sum_of_parts() const noexcept {
    auto const p = static_cast<std::size_t>(size());
    auto const me = static_cast<std::uint64_t>(rank());
    auto const key = [&](std::uint64_t sender, std::uint64_t receiver, std::int64_t count) {
      return mix(mix(sender * p + receiver) + static_cast<std::uint64_t>(count));
    };
    std::uint64_t sum = 0;
    for (std::size_t peer = 0; peer < p; ++peer)
      if (peer != me) sum += key(me, peer, raw_transfers_[peer].count) - key(peer, me, raw_transfers_[p + peer].count);
    return sum;
  }
  [[nodiscard]] bool all_transfers_fit() const {
    std::uint64_t all = 0;
    rounds_.for_each_block([&](int, std::byte const* block) {
      std::uint64_t each = 0;
      std::memcpy(&each, block, sizeof each);
      all += each;
    });
    return all == 0 || !asserts(assertion_level::normal);
  }
  /// Each rank sends its count to each other rank, so that the error can name the ranks that differ.
  [[nodiscard]] stage send_counts() {
    auto const p = static_cast<std::size_t>(size());
    auto* const received = received_.at_least(p * sizeof(std::int64_t));
    auto* const sent = sent_.at_least(p * sizeof(std::int64_t));
    constexpr auto each = sizeof(std::int64_t);
    for_each_other(rank(), size(), [&](int source, int target) {
      auto const to_whom = static_cast<std::size_t>(target);
      std::memcpy(sent + to_whom * each, &raw_transfers_[to_whom].count, each);
      headers_.receive(route, received + static_cast<std::size_t>(source) * each, each, source, route.tag + 2);
      headers_.send(route, sent + to_whom * each, each, target, route.tag + 2);
    });
    return stage::counting;
  }
  void expect_equal_counts() const {
    for (int peer = 0; peer < size(); ++peer) {
      auto const& expected = raw_transfers_[static_cast<std::size_t>(size() + peer)];
      std::int64_t count = 0;
      std::memcpy(&count, received_.data() + static_cast<std::size_t>(peer) * sizeof count, sizeof count);
      if (peer != rank() && count != expected.count)
        throw comm_error(
            differing_transfers(mpi_name, peer, {rank(), true, expected.type, count, nullptr}, rank(), expected));
    }  // else the counts of other ranks differ, and those ranks throw
  }

  // --- what is large goes between each two ranks

  [[nodiscard]] stretch outgoing(int peer) const noexcept {
    if (has_transfers())
      return {raw_transfers_[static_cast<std::size_t>(peer)].address,
              raw_transfers_[static_cast<std::size_t>(peer)].count};
    auto given = cuts().given(does(), rank(), peer);
    if (is_broadcast()) given = rank() == it_.what.root ? cuts().owned(peer) : interval{};
    return {from(given.first), given.count};
  }
  [[nodiscard]] stretch incoming(int peer) const noexcept {
    if (has_transfers()) {
      auto const& transfer = raw_transfers_[static_cast<std::size_t>(size() + peer)];
      return {transfer.address, transfer.count};
    }
    auto taken = cuts().taken(does(), peer, rank());
    if (is_broadcast()) taken = peer == it_.what.root ? cuts().owned(rank()) : interval{};
    return {to(taken.first), taken.count};
  }
  [[nodiscard]] bool is_broadcast() const noexcept { return it_.what.kind == collective::broadcast; }

  [[nodiscard]] bool advance_large() {
    if (large_ == large_method::reduced) return reduction_.advance();
    return large_ == large_method::native ? native_.advance() : first_.done(route);
  }
  void begin_large() {
    if (large_ == large_method::reduced) return reduction_.begin(route, it_, cuts());
    if (large_ == large_method::native) return;  // queued when the call began
    move_own();
    move_large();
  }
  void move_own() const {
    auto const source = outgoing(rank());
    auto const target = incoming(rank());
    if (target.count > 0 && target.at != source.at) std::memmove(target.at, source.at, bytes(target.count));
  }
  void move_large() {
    for_each_other(rank(), size(), [&](int source, int target) {
      if (auto const in = incoming(source); in.count > 0)
        first_.receive(route, in.at, bytes(in.count), source, route.tag + 1);
      if (auto const out = outgoing(target); out.count > 0)
        first_.send(route, out.at, bytes(out.count), target, route.tag + 1);
    });
    // A large broadcast: the root sends each rank one slice, which that rank passes on to the others.
    if (!is_broadcast()) return;
    if (rank() == it_.what.root) {
      forward();
    } else {
      for (int source = 0; source < size(); ++source)
        if (auto const transfer = cuts().owned(source); source != rank() && transfer.count > 0)
          second_.receive(route, to(transfer.first), bytes(transfer.count), source, route.tag + 2);
    }
  }
  void forward() {
    auto const mine = cuts().owned(rank());
    if (mine.count == 0) return;
    auto const* const values = rank() == it_.what.root ? from(mine.first) : to(mine.first);
    for_each_other(rank(), size(), [&](int, int target) {
      if (target != it_.what.root) second_.send(route, values, bytes(mine.count), target, route.tag + 2);
    });
  }

  /// The peers whose messages are missing.
  [[nodiscard]] std::vector<int> waited_for() const {
    std::vector<int> late;
    for (std::size_t i = 0; at_ == stage::announcing && i < acknowledgements_.size(); ++i)
      if (!begun_[i]) late.push_back(raw_transfers_[i].peer);
    if (int const peer = rounds_.waits_for(); !is_exchange() && peer >= 0) late.push_back(peer);
    for (bool const receiving : {true, false}) {
      if (!late.empty()) break;
      if (!receiving || at_ == stage::counting) headers_.append_late(late, receiving);
      first_.append_late(late, receiving);
      second_.append_late(late, receiving);
      if (large_ == large_method::reduced) reduction_.append_late(late, receiving);
    }
    return late;
  }

  // --- exchange: each message has its own announcement. A large message is sent when its receiver has replied that it
  // may come; the receiver replies at once, if the announcement matches.

  [[nodiscard]] static std::size_t bytes_of(raw_transfer const& it) noexcept {
    return static_cast<std::size_t>(it.count) * size_of(it.type);
  }
  [[nodiscard]] static bool is_announced(raw_transfer const& it) noexcept { return bytes_of(it) <= announced_bytes; }

  [[nodiscard]] bool is_apart(raw_transfer const& it) const noexcept { return touched_ && !is_announced(it); }

  void begin_exchange() {
    auto* const received = received_.at_least(raw_transfers_.size() * capacity);
    auto* const sent = sent_.at_least(raw_transfers_.size() * capacity);
    acknowledgements_.assign(raw_transfers_.size(), MPI_REQUEST_NULL);
    begun_.assign(raw_transfers_.size(), false);
    for (std::size_t i = 0; i < raw_transfers_.size(); ++i) {
      auto const& transfer = raw_transfers_[i];
      bool const apart = is_apart(transfer);
      if (apart) where->large_line.push_back({route.number, transfer.peer, transfer.sent});
      if (!transfer.sent) {
        expect_answer(i, received + i * capacity, capacity, route.tag);
        if (apart) headers_.send(route, received, 0, transfer.peer, route.tag + 2);
        continue;
      }
      auto* const out = sent + i * capacity;
      auto const carried = touched_ && !apart ? bytes_of(transfer) : 0;
      message_head const head{transfer.count, static_cast<std::uint32_t>(carried),
                              static_cast<std::uint8_t>(transfer.type)};
      std::memcpy(out, &head, sizeof head);
      if (carried > 0) std::memcpy(out + sizeof head, transfer.address, carried);
      headers_.send(route, out, sizeof head + carried, transfer.peer, route.tag);
      if (apart) expect_answer(i, sent, 0, route.tag + 2);
    }
  }
  void expect_answer(std::size_t i, std::byte* to, std::size_t most, int tag) {
    route.check(MPI_Irecv(to, static_cast<int>(most), MPI_BYTE,
                          where->members[static_cast<std::size_t>(raw_transfers_[i].peer)], tag, where->handle,
                          &acknowledgements_[i]));
  }
  /// Whether all messages have begun.
  [[nodiscard]] bool advance_exchange() {
    bool all = true;
    for (std::size_t i = 0; i < raw_transfers_.size(); ++i) {
      if (!begun_[i]) begun_[i] = begins(i);
      all = all && begun_[i];
    }
    return headers_.done(route) && all;
  }
  /// Begins a message if it may begin; a small one is then complete.
  [[nodiscard]] bool begins(std::size_t i) {
    auto const& transfer = raw_transfers_[i];
    if (acknowledgements_[i] != MPI_REQUEST_NULL) {
      int flag = 0;
      route.check(MPI_Test(&acknowledgements_[i], &flag, MPI_STATUS_IGNORE));
      if (flag == 0) return false;
      acknowledgements_[i] = MPI_REQUEST_NULL;
      if (!transfer.sent) expect_equal_ends(i);
    }
    if (!is_apart(transfer)) {
      if (!transfer.sent && touched_ && transfer.count > 0)
        std::memcpy(transfer.address, received_.data() + i * capacity + sizeof(message_head), bytes_of(transfer));
      return true;
    }
    // All large messages between two ranks have one tag, so they begin in the order of the calls.
    auto const first = std::ranges::find_if(
        where->large_line, [&](auto const& each) { return each.peer == transfer.peer && each.sent == transfer.sent; });
    if (first == where->large_line.end() || first->exchange != route.number) return false;
    where->large_line.erase(first);
    if (transfer.sent)
      first_.send(route, transfer.address, bytes_of(transfer), transfer.peer, route.tag + 1);
    else
      first_.receive(route, transfer.address, bytes_of(transfer), transfer.peer, route.tag + 1);
    return true;
  }
  void expect_equal_ends(std::size_t i) const {
    if (!asserts(assertion_level::normal)) return;
    auto const& transfer = raw_transfers_[i];
    message_head head;
    std::memcpy(&head, received_.data() + i * capacity, sizeof head);
    auto const type = static_cast<dtype>(head.type);
    if (head.count != transfer.count || type != transfer.type)
      throw comm_error(
          differing_transfers(mpi_name, transfer.peer, {rank(), true, type, head.count, nullptr}, rank(), transfer));
    if (head.carried != (touched_ && is_announced(transfer) ? bytes_of(transfer) : 0))
      throw comm_error(text(mpi_name, ": a message of rank ", transfer.peer, " to rank ", rank(), " brings ",
                            how_many(head.carried, "byte"), " with its announcement of ", describe(transfer),
                            "; give both sides of an exchange the same kind of memory"));
  }

  command it_;
  std::vector<raw_transfer> raw_transfers_;
  std::vector<std::int64_t> counts_, firsts_;  ///< of a ragged call: elements of each rank, and of all before it
  bool touched_ = false;
  bool is_large_ = false;  ///< something moves after the rounds
  large_method large_ = large_method::moved;
  stage at_ = stage::announcing;
  mpi_wire wire_;
  rounds<mpi_wire> rounds_;
  mpi_messages headers_, first_, second_;
  mpi_reduction reduction_;
  mpi_native native_;
  std::vector<MPI_Request> acknowledgements_;  ///< of an exchange: what the other side of each message says first
  std::vector<bool> begun_;                    ///< and which messages have begun
  byte_buffer received_, sent_;
  std::vector<void const*> terms_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_OPERATION_INCLUDED

// ---- trireme/comm/mpi/closing.hpp (goes on)
namespace trireme::comm::detail {

/// Closes a group on this rank, which has left it, or in which a call has failed. A communicator may be freed only when
/// no message can arrive in it any more: MPI gives its number to the next communicator, which would then receive a late
/// message of the old group. So each rank receives and drops whatever still arrives. When MPI is done with all requests
/// of this rank, the rank sends messages in rounds like those of a barrier, but to both sides, so that it has also
/// received every notice that its neighbours have sent. After the last round no rank uses any memory of the group.
///
/// The rounds carry whether a call has failed on any rank. If so, messages may still be in flight, and all ranks keep
/// the communicator; otherwise all of them free it.
///
/// A rank that has not left yet, has not received the failure, or has died, blocks the rounds. So no call waits for
/// them without a limit; later calls and MPI_Finalize go on with them. After a failure that is essential: a message in
/// flight can often not be cancelled. It ends when its receiver takes it, and in some MPIs MPI_Finalize waits for that.
class mpi_closing {
 public:
  /// @param notices  of the group's family; it notes arriving messages about ranks that end or report.
  /// @param failed   whether a call of the family has failed; if not, this rank has left the group.
  mpi_closing(mpi_group const& group, std::shared_ptr<mpi_notices> notices, bool failed)
      : notices_(std::move(notices)),
        handle_(group.handle),
        members_(group.members),
        rank_(group.rank),
        rounds_(rounds_among(group.size)),
        failed_here_(failed),
        failed_(failed),
        received_(static_cast<std::size_t>(rounds_) + 1) {}

  /// The communicator whose messages it takes.
  [[nodiscard]] MPI_Comm handle() const noexcept { return handle_; }
  /// Whether a call of the group has failed on this rank.
  [[nodiscard]] bool has_failed_here() const noexcept { return failed_here_; }
  /// When it is complete: whether no rank will use the communicator again, and no message is in flight in it.
  [[nodiscard]] bool is_to_free() const noexcept { return !failed_; }
  /// Makes the progress that is possible now; returns whether it is complete. `quiet()` returns whether MPI is done
  /// with the operations of this rank.
  template <class Quiet>
  bool advance(Quiet&& quiet) {
    drop_what_comes();
    bool const all_here = are_done(requests_);
    if (all_here) {
      coming_.clear();
      requests_.clear();
    }
    if (round_ == 0) {
      if (!all_here || !quiet()) return false;
      next_round();
    }
    while (round_ <= rounds_ && received_[static_cast<std::size_t>(round_)] >= 2) next_round();
    return round_ > rounds_ && requests_.empty() && mpi_outbox::of_process().sweep(handle_);
  }

 private:
  [[nodiscard]] int member(int number) const noexcept {
    auto const size = static_cast<int>(members_.size());
    return members_[static_cast<std::size_t>((number + size) % size)];
  }
  void next_round() {
    if (++round_ > rounds_) return;
    char const message[] = {static_cast<char>(round_), failed_ ? '\1' : '\0'};
    int const hop = 1 << (round_ - 1);
    for (int const to : {rank_ + hop, rank_ - hop})
      mpi_outbox::of_process().send(handle_, member(to), mpi_tags::closes, {message, sizeof message});
  }
  void count_message(char round, char failed) {
    failed_ = failed_ || failed != '\0';
    if (round > 0 && round <= rounds_) ++received_[static_cast<std::size_t>(round)];
  }
  void drop_what_comes() {
    for (;;) {
      int found = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, handle_, &found, &message, &status) != MPI_SUCCESS || found == 0)
        return;
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      coming_.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(std::max(bytes, 1))));
      requests_.push_back(MPI_REQUEST_NULL);
      MPI_Imrecv(coming_.back().get(), bytes, MPI_BYTE, &message, &requests_.back());
      notices_->note(status.MPI_TAG, status.MPI_SOURCE);
      if (status.MPI_TAG != mpi_tags::closes || bytes != 2) continue;
      MPI_Wait(&requests_.back(), MPI_STATUS_IGNORE);  // it is here already
      count_message(static_cast<char>(coming_.back()[0]), static_cast<char>(coming_.back()[1]));
    }
  }

  std::shared_ptr<mpi_notices> notices_;
  MPI_Comm handle_;
  std::vector<int> members_;
  int rank_;
  int rounds_;
  bool failed_here_;
  bool failed_;                // here or on another rank
  int round_ = 0;              // 0: requests of this rank are in flight; above rounds_: complete
  std::vector<int> received_;  // messages of each round; two complete it
  std::vector<MPI_Request> requests_;
  std::vector<std::unique_ptr<std::byte[]>> coming_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_CLOSING_INCLUDED

// ---- trireme/comm/mpi/driver.hpp (goes on)
namespace trireme::comm::detail {

/// The groups that come from one launch or one borrow(). If a call of one of them fails, all of them have failed, and
/// groups of other families have not.
struct mpi_family {
  bool failed = false;
  bool settled = false;  ///< calls no longer wait until MPI has released the caller's memory
  std::string message;
  mpi_notices notices;
};

/// Carries out the commands of this process. A thread calls MPI only while it holds the driver's lock, as
/// MPI_THREAD_SERIALIZED requires. A rank that waits drives all commands itself, without another thread. While it
/// computes, a helper thread drives them, if MPI allows that (session.hpp) and a command is in flight; otherwise the
/// helper sleeps and makes no MPI calls. Without a helper, all commands proceed in every call of the rank: start, test,
/// wait, poll.
///
/// Memory that MPI was given lives until MPI is done with it. The driver, which is never destroyed, closes a group
/// (closing.hpp) that this rank has left or in which a call has failed; it does so during calls of other groups and in
/// MPI_Finalize. Until then it keeps the communicator and the failed operations.
class mpi_driver {
 public:
  mpi_driver(mpi_driver const&) = delete;
  mpi_driver& operator=(mpi_driver const&) = delete;

  /// The only driver of this process.
  [[nodiscard]] static mpi_driver& of_process() {
    static auto& only = *new mpi_driver;
    return only;
  }

  /// Calls `use()` with the lock held.
  template <class Use>
  decltype(auto) alone(Use&& use) {
    std::lock_guard const lock(mutex_);
    return use();
  }

  /// Adds a group: from now on failures are sent to its ranks and received from them.
  void add(mpi_group& group) {
    std::lock_guard const lock(mutex_);
    end_with_mpi();
    groups_.push_back(&group);
    received_roll_.resize(std::max(received_roll_.size(), roll_bytes(group.size)));
  }
  /// The helper ends with the last group. Does not wait for other ranks, which may still use the group.
  void remove(mpi_group& group) noexcept {
    std::thread ended;
    {
      std::lock_guard const lock(mutex_);
      std::erase(groups_, &group);
      bool const may_call = mpi_session::instance().may_call();
      if (!group.family->failed && !is_over_) {
        if (may_call) {
          receive_rolls(group);
          mpi_notices::send_departure(group);
        }
        try {
          close(group);
        } catch (...) {  // out of memory: the communicator is never freed
        }
      }
      if (may_call) advance_closings();
      if (groups_.empty() && helper_.joinable()) {
        ended = std::move(helper_);
        ++generation_;
      }
    }
    changed_.notify_all();
    if (ended.joinable()) ended.join();
  }

  void run(mpi_group& group, command const& it) {
    std::unique_lock lock(mutex_);
    auto& op = begin(group, it, lock);
    try {
      drive(op, lock);
    } catch (...) {
      reuse(op);
      throw;
    }
    reuse(op);
  }

  /// The command proceeds while the caller computes.
  mpi_operation& start(mpi_group& group, command const& it) {
    std::unique_lock lock(mutex_);
    auto& op = begin(group, it, lock);
    if (!mpi_session::instance().has_helper()) {
      advance_all();
      return op;
    }
    if (op.finished.load(std::memory_order_relaxed)) return op;
    mode_ = arithmetic_mode::of_this_thread();
    if (!helper_.joinable()) helper_ = std::thread([this, generation = generation_] { help(generation); });
    wake_helper(lock);
    return op;
  }

  /// Gives an operation back that has finished, or that has failed.
  void release(mpi_operation& op) noexcept {
    std::lock_guard const lock(mutex_);
    try {  // unfinished: its request was destroyed by a thread that may not call MPI
      if (goes_on(op) && !is_over_) fail(*op.where->family, text(mpi_name, ": ", description_of(op), " was given up"));
    } catch (...) {  // out of memory for the sentence
    }
    reuse(op);
  }

  [[nodiscard]] bool test(mpi_operation& op) {
    if (op.finished.load(std::memory_order_acquire)) return true;
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    expect_callable(op);
    advance_all();
    if (op.finished.load(std::memory_order_acquire)) return true;
    listen();
    if (op.where->family->failed) throw_failure(*op.where, op.route.what.kind, lock);
    return false;
  }

  void wait(mpi_operation& op) {
    if (op.finished.load(std::memory_order_acquire)) return;
    std::unique_lock lock(mutex_);
    drive(op, lock);
  }

  /// Makes the progress that is possible now with all commands of this process.
  void poll(mpi_group const& group) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;  // another thread is making progress
    if (!group.family->failed) {
      expect_callable(group, "poll");
      advance_all();
      listen();
    }
    if (!group.family->failed) return;
    settle(group, lock);
    throw comm_error(group.family->message, {group.rank, "poll"});
  }

  /// Returns when the collectives of MPI that calls so far use have begun. Needed before another collective of MPI on
  /// the same communicator, because MPI requires the same order on all ranks.
  void begin_native(mpi_group& group) {
    std::unique_lock lock(mutex_);
    if (group.native_line.empty()) return;
    auto const last = std::ranges::find_if(
        active_, [&](auto const* op) { return op->where == &group && op->route.number == group.native_line.back(); });
    if (last != active_.end()) drive(**last, lock);
  }

  [[nodiscard]] bool failed(mpi_family const& family) {
    std::lock_guard const lock(mutex_);
    return family.failed;
  }
  /// Goes on closing groups. Without one there is nothing to do.
  void close_groups() {
    std::lock_guard const lock(mutex_);
    advance_closings();
  }
  /// As node_launch::reports(), but by messages. `launch` is the group of all ranks.
  [[nodiscard]] bool reports(mpi_group const& launch) noexcept {
    std::lock_guard const lock(mutex_);
    if (is_over_ || !mpi_session::instance().may_call()) return launch.rank == 0;
    mpi_notices::send_end(launch);
    auto& notices = launch.family->notices;
    auto const receive_reports = [&] {
      advance_closings();  // which also receives these messages, and notes them
      notices.receive_reports(launch);
    };
    auto const begin = clock::now();
    for (receive_reports(); launch.rank > 0 && !notices.another_reports(); receive_reports()) {
      if (clock::now() - begin > patience_with_reporters * (notices.lowest_failed() < launch.rank ? 2 : 1)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (notices.another_reports()) {
      std::this_thread::sleep_for(time_to_report);
      return false;
    }
    mpi_notices::send_report(launch);
    return true;
  }
  /// Tells every other rank of the group that this one cannot go on, and stops.
  void announce_failure(mpi_group const& group, std::string const& sentence) {
    std::unique_lock lock(mutex_);
    expect_caller(group, "abandon");
    fail(*group.family, sentence);
    settle(group, lock);
  }

 private:
  mpi_driver() = default;

  mpi_operation& begin(mpi_group& group, command const& it, std::unique_lock<std::mutex>& lock) {
    if (unused_.empty()) {
      owned_.push_back(std::make_unique<mpi_operation>());
      unused_.push_back(owned_.back().get());
      active_.reserve(owned_.size());
      unused_.reserve(owned_.size());
    }
    if (group.family->failed) throw_failure(group, it.what.kind, lock);
    expect_callable(group, name_of(it.what.kind));
    auto& op = *unused_.back();
    unused_.pop_back();
    active_.push_back(&op);
    try {
      op.begin(group, it);
      op.advance();
    } catch (std::exception const& problem) {
      fail(*group.family, problem.what());
      struct release {
        mpi_driver& driver;
        mpi_operation& op;
        ~release() { driver.reuse(op); }
      } const after{*this, op};
      throw_failure(group, it.what.kind, lock);
    }
    return op;
  }
  /// Errors  config_error if this thread may not call MPI; comm_error after MPI_Finalize.
  static void expect_caller(mpi_group const& group, std::string_view call) {
    auto const& session = mpi_session::instance();
    if (!session.may_call())
      throw config_error(
          text(mpi_name, ": MPI was initialised with ", session.level(), ", but another thread calls ", call,
               "; call from the thread that has initialised MPI, or initialise it with "
               "MPI_Init_thread(..., MPI_THREAD_SERIALIZED, ...)"),
          {group.rank, std::string(call)});
  }
  void expect_callable(mpi_group const& group, std::string_view call) const {
    expect_caller(group, call);
    if (is_over_)
      throw comm_error(text(mpi_name, ": ", call, " was called after MPI_Finalize; finalise MPI after the last call"),
                       {group.rank, std::string(call)});
  }
  /// The same of a call that has begun earlier.
  void expect_callable(mpi_operation const& op) const {
    auto const call = name_of(op.route.what.kind);
    expect_caller(*op.where, call);
    if (is_over_)
      throw comm_error(text(mpi_name, ": ", description_of(op),
                            " was under way when MPI was finalised; wait for it before MPI_Finalize"),
                       {op.where->rank, std::string(call)});
  }
  void reuse(mpi_operation& op) noexcept {
    std::erase(active_, &op);
    // MPI may still use the buffers of a failed operation, so that one is kept and not used again.
    if (!op.where->family->failed && !is_over_) unused_.push_back(&op);
  }

  /// Makes the calls of MPI that finish `op`.
  void drive(mpi_operation& op, std::unique_lock<std::mutex>& lock) {
    struct presence {
      mpi_driver& driver;
      std::unique_lock<std::mutex>& lock;
      presence(mpi_driver& it, std::unique_lock<std::mutex>& held) : driver(it), lock(held) { ++driver.drivers_; }
      presence(presence const&) = delete;
      presence& operator=(presence const&) = delete;
      ~presence() {
        --driver.drivers_;
        driver.wake_helper(lock);
      }
    } const here(*this, lock);
    // A round usually takes less than a microsecond, but can take 50 ms on a busy machine, where Open MPI lets other
    // processes compute whenever it has nothing to do. So a slow wait looks at the clock in each round: otherwise it
    // would end, and hear of a failure, seconds too late.
    clock::time_point began{}, paused{};
    bool is_long = false;
    for (std::uint32_t round = 1;; ++round) {
      if (op.finished.load(std::memory_order_relaxed)) return;
      if (op.where->family->failed) throw_failure(*op.where, op.route.what.kind, lock);
      if (round == 1) expect_callable(op);
      if (round == 4) began = paused = clock::now();
      if (active_.size() == 1)
        advance(op);
      else
        advance_all();
      bool const looks = is_long || round % 32 == 0 || round == 8 || round == 16;
      if (!looks || op.finished.load(std::memory_order_relaxed)) continue;
      auto const now = clock::now();
      auto const waited = now - began;
      is_long = waited >= long_wait;
      if (round % 32 != 0 && now - paused < long_wait) continue;
      listen();
      if (waited > op.where->deadline) give_up(op);
      call_roll(op, waited, now);
      report_if_late(op.reported_late, waited, op.where->deadline, [&] { return op.as_late(); });
      paused = now;
      lock.unlock();
      rest_between_rounds(is_long);
      lock.lock();
    }
  }
  [[nodiscard]] static std::string description_of(mpi_operation const& op) {
    return text(to_string(op.route.what), " number ", op.route.printed_number(), to_string(op.route.what.label));
  }
  void give_up(mpi_operation& op) {
    fail(*op.where->family, too_late(mpi_name, description_of(op), op.where->deadline, op.missing_ranks()));
  }

  void advance(mpi_operation& op) {
    try {
      op.advance();
    } catch (std::exception const& problem) {  // std::bad_alloc, too
      fail(*op.where->family, problem.what());
    }
  }
  /// Whether it can still make progress.
  [[nodiscard]] static bool goes_on(mpi_operation const& op) noexcept {
    return !op.finished.load(std::memory_order_relaxed) && !op.where->family->failed;
  }
  void advance_all() {
    if (is_over_) return;
    for (std::size_t i = 0; i < active_.size(); ++i)
      if (goes_on(*active_[i])) advance(*active_[i]);
  }
  [[nodiscard]] std::size_t unfinished() const noexcept {
    if (is_over_) return 0;
    return static_cast<std::size_t>(std::ranges::count_if(active_, [](auto const* op) { return goes_on(*op); }));
  }

  /// Receives messages of other ranks about failures and missing ranks.
  void listen() {
    if (is_over_) return;
    for (auto* group : groups_) {
      auto& family = *group->family;
      if (family.failed) continue;
      receive_rolls(*group);
      if (auto const failure = family.notices.receive_failure(*group)) {
        fail(family, failure->sentence, failure->from);
        continue;
      }
      family.notices.receive_departures(*group);
      fail_without_all(*group);
    }
    mpi_outbox::of_process().sweep();
    advance_closings();
  }

  /// Fails what waits for a rank that has left.
  void fail_without_all(mpi_group const& group) {
    auto const waits = std::ranges::find_if(active_, [&](auto const* op) {
      return op->where == &group && op->route.what.kind != collective::exchange &&
             op->route.number >= group.without_all && goes_on(*op);
    });
    if (waits == active_.end()) return;
    fail(*group.family, text(mpi_name, ": ", description_of(**waits), " cannot finish, because rank ", group.has_left,
                             " has left without calling it; make every rank call the same collectives"));
  }

  // Ranks that wait for a long time tell each other which ranks are in the call and which ranks they wait for
  // (roll_call.hpp). Such a message is a head and these two sets.
  struct roll_head {
    std::uint64_t number = 0;
    std::int32_t rank = 0;
    std::int32_t size = 0;
  };
  [[nodiscard]] static std::size_t roll_bytes(int size) noexcept {
    return sizeof(roll_head) + 2 * sizeof(std::uint64_t) * static_cast<std::size_t>((size + 63) / 64);
  }

  /// Sends the sets when `op` has been waited for longer than usual, and again from time to time.
  void call_roll(mpi_operation& op, clock::duration waited, clock::time_point now) {
    auto const deadline = op.where->deadline;
    if (!goes_on(op) || !op.calls_roll() || waited < std::min<clock::duration>(std::chrono::seconds(1), deadline / 4) ||
        now < op.next_roll)
      return;
    op.next_roll = now + std::min<clock::duration>(std::chrono::seconds(1), deadline / 16);
    op.enter_roll();
    send_rolls(op, op.where->rank);
  }
  /// Sends them to the neighbours of this rank, except `but`, which has just sent them.
  void send_rolls(mpi_operation const& op, int but) {
    roll_call::for_each_neighbour(op.where->rank, op.where->size, [&](int peer) {
      if (peer != but) send_roll(op, peer);
    });
  }
  void send_roll(mpi_operation const& op, int peer) {
    auto const& group = *op.where;
    std::string out(roll_bytes(group.size), '\0');
    roll_head const head{op.route.number, group.rank, group.size};
    std::memcpy(out.data(), &head, sizeof head);
    std::memcpy(out.data() + sizeof head, op.roll.bits().data(), op.roll.bits().size_bytes());
    send_roll(group, peer, out);
  }
  static void send_roll(mpi_group const& group, int peer, std::string_view bytes) noexcept {
    mpi_outbox::of_process().send(group.handle, group.members[static_cast<std::size_t>(peer)], mpi_tags::roll, bytes);
  }
  void receive_rolls(mpi_group const& group) noexcept {
    int bytes = 0;
    while (group.family->notices.take(group, mpi_tags::roll, received_roll_.data(), received_roll_.size(), bytes) >= 0)
      receive_roll(group, static_cast<std::size_t>(bytes));
  }
  /// If the call is in flight here: replies to a rank whose sets lack something, and passes on what is new.
  void receive_roll(mpi_group const& group, std::size_t bytes) noexcept try {
    roll_head head;
    if (bytes != roll_bytes(group.size)) return;
    std::memcpy(&head, received_roll_.data(), sizeof head);
    if (head.rank < 0 || head.rank >= group.size || head.size != group.size) return;
    for (auto* op : active_) {
      if (op->where != &group || op->route.number != head.number || !op->calls_roll() || !goes_on(*op)) continue;
      received_bits_.resize((bytes - sizeof head) / sizeof(std::uint64_t));
      std::memcpy(received_bits_.data(), received_roll_.data() + sizeof head, bytes - sizeof head);
      op->enter_roll();
      bool const grew = op->roll.merge(received_bits_);
      if (op->roll.knows_more_than(received_bits_)) send_roll(*op, head.rank);
      if (grew) send_rolls(*op, head.rank);
      return;
    }
    if (head.number >= group.next) return;
    // This rank has finished that call already, and replies that it is not missing.
    auto const mine = sizeof head + sizeof(std::uint64_t) * (static_cast<std::size_t>(group.rank) / 64);
    std::uint64_t word = 0;
    std::memcpy(&word, received_roll_.data() + mine, sizeof word);
    auto const bit = std::uint64_t{1} << (group.rank % 64);
    if ((word & bit) != 0) return;
    word |= bit;
    std::memcpy(received_roll_.data() + mine, &word, sizeof word);
    auto const to = std::exchange(head.rank, group.rank);
    std::memcpy(received_roll_.data(), &head, sizeof head);
    send_roll(group, to, {received_roll_.data(), bytes});
  } catch (...) {  // out of memory for a reply: the error may also name ranks that are not missing
  }
  /// Fails all calls of a family and tells its other ranks, except `received_from`, which has told this one.
  void fail(mpi_family& family, std::string sentence, int received_from = -1) {
    if (family.failed) return;
    family.failed = true;
    family.message = std::move(sentence);
    if (is_over_) return;
    std::vector<mpi_group*> those;
    for (auto* group : groups_)
      if (group->family.get() == &family) those.push_back(group);
    bool const may_call = mpi_session::instance().may_call();
    if (may_call) family.notices.send_failure(those, family.message, received_from);
    for (auto* op : active_)
      if (op->where->family.get() == &family) op->give_up(may_call);
    for (auto* group : those) close(*group);
  }
  /// Begins to close a group, without a call of MPI.
  void close(mpi_group const& group) {
    auto const& family = group.family;
    closings_.push_back(
        std::make_unique<mpi_closing>(group, std::shared_ptr<mpi_notices>(family, &family->notices), family->failed));
  }
  /// Waits until no rank and no request uses the caller's memory any more, but for a quarter of the deadline and one
  /// second at most, because a rank that has stopped would never release it.
  void settle(mpi_group const& group, std::unique_lock<std::mutex>& lock) {
    auto const family = group.family;
    auto const end = clock::now() + std::min<clock::duration>(std::chrono::seconds(1), group.deadline / 4);
    while (!family->settled && !is_over_ && mpi_session::instance().may_call()) {
      advance_closings();
      bool const open = std::ranges::any_of(groups_, [&](auto const* each) {
        return each->family == family &&
               std::ranges::any_of(closings_, [&](auto const& one) { return one->handle() == each->handle; });
      });
      if (!open || clock::now() > end) break;
      lock.unlock();
      rest_between_rounds(true);
      lock.lock();
    }
    family->settled = true;
  }
  [[noreturn]] void throw_failure(mpi_group const& group, collective kind, std::unique_lock<std::mutex>& lock) {
    settle(group, lock);
    throw comm_error(group.family->message, {group.rank, std::string(name_of(kind))});
  }

  /// Makes progress with the groups that end.
  void advance_closings() noexcept {
    if (closings_.empty() || is_over_) return;
    std::erase_if(closings_, [&](auto& each) {
      try {
        if (!each->advance([&] { return is_quiet(each->handle()); })) return false;
      } catch (...) {  // out of memory for a message: tried again later
        return false;
      }
      auto handle = each->handle();
      if (each->is_to_free()) MPI_Comm_free(&handle);
      return true;
    });
    // Failed operations are destroyed when their group is closed.
    if (std::ranges::none_of(owned_, [](auto const& op) { return op->is_given_up; })) return;
    std::erase_if(owned_, [&](auto const& op) {
      return op->is_given_up && std::ranges::find(active_, op.get()) == active_.end() &&
             std::ranges::none_of(closings_, [&](auto const& each) { return each->handle() == op->handle; });
    });
  }
  /// Whether MPI is done with all that this rank has begun in a group that has failed.
  [[nodiscard]] bool is_quiet(MPI_Comm handle) noexcept {
    bool all = mpi_outbox::of_process().sweep(handle);
    for (auto const& op : owned_)
      if (op->is_given_up && op->handle == handle) all = op->is_quiet() && all;
    return all;
  }

  /// Makes MPI_Finalize finish pending closings and messages, for at most a second: all ranks call it, and in some MPIs
  /// it does not return while messages are in flight. MPI_Finalize deletes the attributes of MPI_COMM_SELF first, which
  /// calls at_finalize(). A group that this rank has left without a failure has nothing in flight, and is not waited
  /// for: other ranks may compute for a long time before they leave it.
  void end_with_mpi() {
    if (std::exchange(ends_with_mpi_, true)) return;
    int key = MPI_KEYVAL_INVALID;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &mpi_driver::at_finalize, &key, nullptr);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, this);
  }
  static int at_finalize(MPI_Comm, int, void* driver, void*) {
    static_cast<mpi_driver*>(driver)->finish_all();
    return MPI_SUCCESS;
  }
  void finish_all() noexcept {
    auto const begin = clock::now();
    std::unique_lock lock(mutex_);
    if (mpi_session::instance().ends())  // in exit(), while worlds still exist
      for (auto const* group : groups_)
        if (!group->family->failed) mpi_notices::send_departure(*group);
    for (;;) {
      advance_all();
      advance_closings();
      mpi_outbox::of_process().sweep();
      bool const done = mpi_outbox::of_process().is_empty() && unfinished() == 0 &&
                        std::ranges::none_of(closings_, [](auto const& each) { return each->has_failed_here(); });
      auto const waited = clock::now() - begin;
      if (done && (closings_.empty() || waited > std::chrono::milliseconds(50))) break;
      if (waited > std::chrono::seconds(1)) break;
      lock.unlock();
      rest_between_rounds(true);
      lock.lock();
    }
    is_over_ = true;  // from here on the helper does not call MPI
  }

  /// Wakes the helper if commands are in flight that no caller drives.
  void wake_helper(std::unique_lock<std::mutex>& lock) {
    if (!helper_sleeps_ || drivers_ > 0 || unfinished() == 0) return;
    helper_sleeps_ = false;
    lock.unlock();
    changed_.notify_one();
    lock.lock();
  }
  /// @param generation  of helpers: this one ends when the number has changed.
  void help(int generation) {
    std::unique_lock lock(mutex_);
    int idle = 0;
    while (generation_ == generation) {
      if (drivers_ > 0 || unfinished() == 0) {
        helper_sleeps_ = true;
        changed_.wait(lock, [&] { return generation_ != generation || !helper_sleeps_; });
        idle = 0;
        continue;
      }
      auto const before = unfinished();
      mode_.use();
      advance_all();
      idle = unfinished() < before ? 0 : idle + 1;
      if (idle % 64 == 63) listen();  // to reply to ranks that ask who is missing
      lock.unlock();
      if (idle < 50)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int drivers_ = 0;
  bool helper_sleeps_ = false;
  bool ends_with_mpi_ = false;  ///< whether MPI_Finalize is to call finish_all()
  bool is_over_ = false;        ///< MPI_Finalize has called it: MPI must not be called any more
  int generation_ = 0;
  arithmetic_mode mode_ = arithmetic_mode::of_this_thread();  ///< of the rank; the helper uses it, too
  std::vector<mpi_operation*> active_, unused_;
  std::vector<std::unique_ptr<mpi_operation>> owned_;
  std::vector<mpi_group*> groups_;
  std::vector<std::unique_ptr<mpi_closing>> closings_;
  std::vector<char> received_roll_;
  std::vector<std::uint64_t> received_bits_;
  std::thread helper_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_DRIVER_INCLUDED

// ---- trireme/comm/mpi/engine.hpp (goes on)
namespace trireme::comm::detail {

/// A few bytes of every rank, in rank order. `all_gather(values, counts)` is that of a world; without counts, of equal
/// slices.
template <class AllGather>
[[nodiscard]] std::vector<std::string> gather_texts(int rank, int size, std::string const& own, AllGather all_gather) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(size));
  auto const mine = lengths.begin() + rank;
  *mine = static_cast<std::int64_t>(own.size());
  all_gather(std::span(lengths), std::span<std::int64_t const>{});
  std::string all(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})), '\0');
  std::ranges::copy(own, all.begin() + std::accumulate(lengths.begin(), mine, std::int64_t{0}));
  all_gather(std::span(all), std::span<std::int64_t const>(lengths));
  std::vector<std::string> texts;
  auto at = all.begin();
  for (auto const length : lengths) {
    texts.emplace_back(at, at + length);
    at += length;
  }
  return texts;
}

/// Carries commands in MPI's point-to-point messages, and forms sums in rank order: small values travel in rounds
/// (detail/rounds.hpp), large ones are reduced in slices or carried from machine to machine (reduction.hpp). With
/// sum_order::any MPI's own collectives form large sums (native.hpp).
class message_engine final : public collective_engine {
 public:
  /// Takes `own`, a communicator of this engine alone, and frees it at the end. `members` are those of its ranks that
  /// this group consists of, `rank` is this one's place among them.
  /// `family` are the groups that fail together.
  message_engine(std::shared_ptr<mpi_family> family, MPI_Comm own, std::vector<int> members, int rank,
                 std::chrono::milliseconds deadline, std::size_t piece_bytes) {
    group_.family = std::move(family);
    group_.handle = own;
    group_.members = std::move(members);
    group_.rank = rank;
    group_.size = static_cast<int>(group_.members.size());
    group_.deadline = deadline;
    group_.piece_bytes = piece_bytes;
    driver_.alone([&] {
      MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
      void* bound = nullptr;
      int known = 0;
      MPI_Comm_get_attr(own, MPI_TAG_UB, static_cast<void*>(&bound), &known);
      group_.window = mpi_tags::window_of(known != 0 ? *static_cast<int*>(bound) : 32767);
      int all = 0;
      MPI_Comm_size(own, &all);
      group_.is_whole = group_.members == numbers_below(all);
    });
    driver_.add(group_);
  }
  ~message_engine() override { driver_.remove(group_); }

  /// Collective over `theirs`, which stays as it is.
  [[nodiscard]] static std::shared_ptr<message_engine> on_duplicate(MPI_Comm theirs,
                                                                    std::chrono::milliseconds deadline) {
    auto& driver = mpi_driver::of_process();
    int rank = 0;
    std::vector<int> all;
    driver.alone([&] {
      int size = 0;
      MPI_Comm_rank(theirs, &rank);
      MPI_Comm_size(theirs, &size);
      all = numbers_below(size);
    });
    auto const own = duplicate_of(driver, theirs, deadline);
    return std::make_shared<message_engine>(std::make_shared<mpi_family>(), own, std::move(all), rank, deadline,
                                            mpi_group::whole);
  }

  [[nodiscard]] std::string_view who() const noexcept override { return mpi_name; }
  [[nodiscard]] int rank() const noexcept override { return group_.rank; }
  [[nodiscard]] int size() const noexcept override { return group_.size; }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept override { return group_.deadline; }

  void run(command const& it) override { driver_.run(group_, it); }
  [[nodiscard]] collective_operation& start(command const& it) override { return driver_.start(group_, it); }
  [[nodiscard]] bool test(collective_operation& op) override { return driver_.test(static_cast<mpi_operation&>(op)); }
  void wait(collective_operation& op) override { driver_.wait(static_cast<mpi_operation&>(op)); }
  void release(collective_operation& op) noexcept override { driver_.release(static_cast<mpi_operation&>(op)); }
  [[nodiscard]] bool progresses() const noexcept override { return mpi_session::instance().has_helper(); }

  [[nodiscard]] std::shared_ptr<collective_engine> split(int color, int key) override {
    std::vector<color_and_key> wishes(static_cast<std::size_t>(size()));
    wishes[static_cast<std::size_t>(rank())] = {color, key};
    run({.what = {.kind = collective::split}});
    gather_all(wishes.data(), size(), sizeof(color_and_key), {});
    return part(ranks_of_color(wishes, color), deadline());
  }
  [[nodiscard]] std::shared_ptr<collective_engine> duplicate(std::chrono::milliseconds deadline) override {
    run({.what = {.kind = collective::duplicate}});
    return part(numbers_below(size()), deadline);
  }
  void poll() override { driver_.poll(group_); }
  void expect_several_callers() override {
    auto const& session = mpi_session::instance();
    if (!session.lets_threads_call())
      throw config_error(text(mpi_name, ": several threads of a rank call, but MPI was initialised with ",
                              session.level(),
                              "; initialise it with MPI_Init_thread(..., MPI_THREAD_SERIALIZED, ...)"));
  }
  void abandon(std::string const& sentence) noexcept override {
    try {
      driver_.announce_failure(group_, text(mpi_name, ": rank ", rank(), " ended with an error: ", sentence));
    } catch (...) {  // without memory for a sentence their deadlines end the waits
    }
  }

  [[nodiscard]] bool failed() const noexcept override { return driver_.failed(*group_.family); }
  [[nodiscard]] bool reports() noexcept override { return driver_.reports(group_); }

  /// Collective. Whether all ranks wish to share memory, and are on one machine, as MPI sees it. Also settles the order
  /// of sums: `any` only if all ranks ask for it.
  [[nodiscard]] bool on_one_machine(bool wished, sum_order order) {
    struct standing {
      std::int32_t machine, shares, any_order;  // machine: the first rank on it
    };
    std::vector<standing> all(static_cast<std::size_t>(size()));
    auto& mine = all[static_cast<std::size_t>(rank())];
    mine = {0, wished ? 1 : 0, order == sum_order::any ? 1 : 0};
    driver_.alone([&] { mine.machine = first_rank_here(); });
    gather_all(all.data(), size(), sizeof(standing), {});
    group_.order = std::ranges::all_of(all, [](standing const& each) { return each.any_order == 1; })
                       ? sum_order::any
                       : sum_order::ranks;
    std::vector<int> machines;
    for (auto const& each : all) machines.push_back(each.machine);
    return stand_on(std::move(machines)) &&
           std::ranges::all_of(all, [](standing const& each) { return each.shares == 1; });
  }
  /// Collective. Notes which machine each rank is on; returns whether all are on one.
  bool stand_on(std::vector<int> machines) {
    bool const alone = std::ranges::count(machines, machines[0]) == size();
    group_.piece_bytes = alone ? mpi_group::whole : mpi_group::unasked;
    group_.stand_on(std::move(machines));
    return alone;
  }
  /// From now on calls are the program's: their numbers, in what it is told, begin at 1.
  void end_set_up() noexcept { group_.set_up = group_.next - 1; }
  /// Collective. A few bytes of every rank, in rank order.
  [[nodiscard]] std::vector<std::string> gather_texts(std::string const& own) {
    return detail::gather_texts(
        rank(), size(), own, [this]<class T>(std::span<T> values, std::span<std::int64_t const> counts) {
          gather_all(values.data(), static_cast<std::int64_t>(values.size()), sizeof(T), counts);
        });
  }

 private:
  /// Collective.
  [[nodiscard]] int first_rank_here() const {
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_split_type(group_.handle, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Group those = MPI_GROUP_NULL;
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Comm_group(here, &those);
    MPI_Comm_group(group_.handle, &all);
    int const least = 0;
    int first = 0;
    MPI_Group_translate_ranks(those, 1, &least, all, &first);
    MPI_Group_free(&those);
    MPI_Group_free(&all);
    MPI_Comm_free(&here);
    return first;
  }
  [[nodiscard]] static std::vector<int> numbers_below(int end) {
    std::vector<int> all(static_cast<std::size_t>(end));
    for (int each = 0; each < end; ++each) all[static_cast<std::size_t>(each)] = each;
    return all;
  }
  /// Collective. Not by a blocking call of MPI, which would have no deadline and keep other threads out of MPI.
  [[nodiscard]] static MPI_Comm duplicate_of(mpi_driver& driver, MPI_Comm theirs, std::chrono::milliseconds deadline) {
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    auto code = driver.alone([&] { return MPI_Comm_idup(theirs, &made, &request); });
    auto const began = clock::now();
    for (int done = 0; code == MPI_SUCCESS && done == 0;) {
      code = driver.alone([&] { return MPI_Test(&request, &done, MPI_STATUS_IGNORE); });
      driver.close_groups();  // others may have to end one before they come
      if (done != 0) break;
      auto const waited = clock::now() - began;
      rest_between_rounds(waited >= long_wait);
      if (waited > deadline) {
        mpi_session::instance().abandon();
        throw comm_error(
            text(mpi_name, ": waited ", to_string(deadline),
                 " until all ranks begin; find out why the others are late, or raise comm::mpi{.deadline}"));
      }
    }
    if (code != MPI_SUCCESS)
      throw comm_error(text(mpi_name, ": duplicating the communicator failed: ", mpi_sentence(code)));
    return made;
  }
  /// Collective. `chosen` are the ranks of this group that the new one consists of, this one among them. Groups that
  /// are made together share a duplicate of this group's communicator.
  [[nodiscard]] std::shared_ptr<collective_engine> part(std::vector<int> const& chosen,
                                                        std::chrono::milliseconds deadline) {
    std::vector<int> members;
    std::vector<int> machines;
    for (int const each : chosen) {
      members.push_back(group_.members[static_cast<std::size_t>(each)]);
      if (!group_.machines.empty()) machines.push_back(group_.machines[static_cast<std::size_t>(each)]);
    }
    auto const place = static_cast<int>(std::ranges::find(chosen, rank()) - chosen.begin());
    driver_.begin_native(group_);
    auto const own = duplicate_of(driver_, group_.handle, group_.deadline);
    auto made =
        std::make_shared<message_engine>(group_.family, own, std::move(members), place, deadline, group_.piece_bytes);
    made->group_.stand_on(std::move(machines));
    made->group_.order = group_.order;
    return made;
  }
  void gather_all(void* values, std::int64_t count, std::size_t element_bytes, std::span<std::int64_t const> counts) {
    run({.what = {.kind = collective::all_gather, .count = count, .shape = counts.empty() ? 0 : fingerprint(counts)},
         .from = values,
         .to = values,
         .element_bytes = element_bytes,
         .elements = &moving_kernels<host>,
         .counts = counts});
  }

  mpi_driver& driver_ = mpi_driver::of_process();
  mpi_group group_;
};

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_ENGINE_INCLUDED

// ---- trireme/comm/mpi.ipp (goes on)
#ifndef TRIREME_COMM_MPI_HANDLE_INCLUDED
#define TRIREME_COMM_MPI_HANDLE_INCLUDED

// ---- trireme/comm/mpi/handle.hpp
namespace trireme::comm::detail {

/// While it lives, errors in calls on `of` come back as codes, whatever handler the program has set: the usual one ends
/// the job.
class returned_errors {
 public:
  explicit returned_errors(MPI_Comm of) : of_(of) {
    MPI_Comm_get_errhandler(of_, &before_);
    MPI_Comm_set_errhandler(of_, MPI_ERRORS_RETURN);
  }
  returned_errors(returned_errors const&) = delete;
  returned_errors& operator=(returned_errors const&) = delete;
  ~returned_errors() {
    MPI_Comm_set_errhandler(of_, before_);
    MPI_Errhandler_free(&before_);
  }

 private:
  MPI_Comm of_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

/// Errors  config_error if ranks cannot be made of `theirs`.
inline void check_communicator(MPI_Comm theirs) {
  if (theirs == MPI_COMM_NULL)
    throw config_error(
        "trireme::comm::mpi: borrow got MPI_COMM_NULL, which processes get that are not in a communicator, or have "
        "freed it; call borrow only on its members, before MPI_Comm_free");
  // MPI reports what is wrong with a handle on one of these: MPI 3 on the first, MPI 4 on the second.
  returned_errors const on_world(MPI_COMM_WORLD), on_self(MPI_COMM_SELF);
  int between_two = 0;
  auto const code = MPI_Comm_test_inter(theirs, &between_two);
  if (code != MPI_SUCCESS)
    throw config_error(text("trireme::comm::mpi: borrow got a communicator that has been freed (", mpi_sentence(code),
                            "); call it before MPI_Comm_free"));
  if (between_two != 0)
    throw config_error(
        "trireme::comm::mpi: borrow got an intercommunicator, whose two groups of ranks are numbered apart; make one "
        "group of them with MPI_Intercomm_merge, and lend that");
}

}  // namespace trireme::comm::detail

#endif  // TRIREME_COMM_MPI_HANDLE_INCLUDED

// ---- trireme/comm/mpi.ipp (goes on)
// Bodies of mpi.hpp (see core/compiled.hpp).
#ifdef TRIREME_COMPILED_MPI
#define TRIREME_MPI_BODY
#else
#define TRIREME_MPI_BODY inline
#endif

namespace trireme::comm {

namespace detail {

/// Collective over `theirs`: shared memory if all ranks wish it and are on one machine, otherwise messages.
[[nodiscard]] inline std::shared_ptr<collective_engine> engine_by_mpi(MPI_Comm theirs,
                                                                      std::chrono::milliseconds deadline,
                                                                      bool shared_memory, sum_order order) {
  if (deadline.count() < 1) throw config_error("trireme::comm::mpi: the deadline must be at least 1ms");
  mpi_session::instance().begin();
  auto messages = message_engine::on_duplicate(theirs, deadline);
  bool const together = messages->on_one_machine(shared_memory, order);
  messages->end_set_up();
  auto const by_messages = [&] {
    auto const& session = mpi_session::instance();
    if (messages->rank() == 0 && !session.has_helper() && bootstrap::environment_variable("TRIREME_LOG") == "1")
      std::fputs(
          text("trireme: MPI provides ", session.level(),
               ", so messages proceed only in calls of the rank; with MPI_THREAD_MULTIPLE they overlap with what "
               "it computes\n")
              .c_str(),
          stderr);
    return messages;
  };
  if (!together) return by_messages();
  std::string why;  // some machines forbid shared memory: then messages
  // In shared memory nobody calls MPI, so MPI (Open MPI 5) does not notice that mpirun has ended: hence needs_launcher.
  auto node = try_node_engine(
      mpi_name, messages->rank(), messages->size(), deadline,
      [&](std::string const& own) { return messages->gather_texts(own); }, why, true);
  messages->end_set_up();
  if (node == nullptr) return by_messages();
  return node;
}

/// Whether the launcher of some MPI has started this process, whoever else has set variables.
[[nodiscard]] inline bool launched_by_mpi() {
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun != 0) return true;
  for (auto const* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"})
    if (bootstrap::environment_variable(name)) return true;
  return false;
}

[[nodiscard]] inline bool launched_by_others(bootstrap::launch_info const& here) noexcept {
  return here.started_by == bootstrap::launcher::torchrun || here.started_by == bootstrap::launcher::stated;
}

[[nodiscard]] inline std::shared_ptr<collective_engine> engine_of(mpi const& description) {
  auto const here = bootstrap::detect();
  bootstrap::log(here);
  bool const by_others = launched_by_others(here);
  if (by_others && !launched_by_mpi()) {
    if (!description.shared_memory)
      throw config_error(text(mpi_name, ": .shared_memory = false needs MPI's messages, but ", name_of(here.started_by),
                              " (", here.because, ") has started this process; start it by mpirun"));
    return engine_by_rendezvous(mpi_name, here, description.deadline);
  }
  auto engine = engine_by_mpi(MPI_COMM_WORLD, description.deadline, description.shared_memory, description.order);
  // Otherwise each process would train a model of its own, and nobody would notice.
  if (engine->size() == 1 && here.size > 1 && !by_others)
    throw config_error(text(mpi_name, ": ", name_of(here.started_by), " has started ", here.size, " ranks (",
                            here.because,
                            "), but the MPI that this program is linked with sees only one; use that MPI's own mpirun, "
                            "or srun --mpi=pmix, or set TRIREME_RANK=0 and TRIREME_SIZE=1 to run this process alone"));
  return engine;
}

TRIREME_MPI_BODY void run_mpi(mpi const& description, std::function<void(any_world&, int)> const& body) {
  last_report() = report::unsettled;
  struct leaving {
    std::shared_ptr<collective_engine> engine;
    ~leaving() {
      if (engine->failed()) mpi_session::instance().abandon();
    }
  } const guard{engine_of(description)};
  run_process(guard.engine, body);
}

TRIREME_MPI_BODY void recover_mpi(mpi const& description, recovery const& how,
                                  std::function<void(any_world&, int)> const& body) {
  auto const here = bootstrap::detect();
  if (!description.shared_memory || !launched_by_others(here) || launched_by_mpi()) return run_mpi(description, body);
  bootstrap::log(here);
  recover_processes(mpi_name, here, description.deadline, how, body);
}

}  // namespace detail

TRIREME_MPI_BODY mpi_world mpi::borrow(MPI_Comm theirs, std::chrono::milliseconds deadline, bool shared_memory,
                                       sum_order order) {
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun == 0)
    throw config_error(
        "trireme::comm::mpi: borrow needs an initialised MPI; call MPI_Init_thread first, or use launch");
  detail::mpi_session::instance().begin();  // MPI may be over, and then no handle may be asked anything
  detail::check_communicator(theirs);
  detail::returned_errors const as_codes(theirs);
  return mpi_world(detail::engine_by_mpi(theirs, deadline, shared_memory, order));
}

}  // namespace trireme::comm

#undef TRIREME_MPI_BODY

#endif  // TRIREME_COMM_MPI_IPP_INCLUDED
