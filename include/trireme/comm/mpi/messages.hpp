#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/command.hpp"
#include "trireme/comm/detail/expectations.hpp"
#include "trireme/comm/detail/rounds.hpp"
#include "trireme/comm/mpi/session.hpp"
#include "trireme/comm/sum_order.hpp"

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
