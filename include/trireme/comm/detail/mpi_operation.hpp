#pragma once

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/detail/expectations.hpp"
#include "trireme/comm/detail/mpi_messages.hpp"
#include "trireme/comm/detail/mpi_reduction.hpp"
#include "trireme/comm/detail/process_engine.hpp"
#include "trireme/comm/detail/rank_stretches.hpp"
#include "trireme/comm/late.hpp"

namespace trireme::comm::detail {

/// Values up to this size travel with the announcement, in one step: latency decides. Larger ones are cut into slices.
inline constexpr std::size_t mpi_small_bytes = std::size_t{16} << 10;

/// One rank's part in one command, as stages of messages that never block: announcements to and from all ranks (in an
/// exchange of each message), with the values if they are few; then what is large; then what others wait for from here.
class mpi_operation final : public process_operation {
 public:
  mpi_group* where = nullptr;
  mpi_route route;
  std::atomic<bool> finished{false};
  bool told_late = false;

  /// Takes its number and posts the first messages. Called, as all below, with the driver's lock held.
  void begin(mpi_group& group, command const& it) {
    where = &group;
    it_ = it;
    parts_.assign(it.parts.begin(), it.parts.end());
    touched_ = it.elements != nullptr && it.elements->touchable;
    heard_.clear();
    first_.clear();
    second_.clear();
    at_ = stage::announcing;
    finished.store(false, std::memory_order_relaxed);
    told_late = false;
    pieced_ = false;
    if (it.what.kind == collective::exchange) {
      route = {where, it.what, where->next_exchange++, 1};
      begin_exchange();
      return;
    }
    auto const number = where->next++;
    route = {where, it.what, number, where->tag_of(number)};
    bool const by_value = parts_.empty() && bytes(it.what.count) <= mpi_small_bytes;
    route.what.by_value = touched_ && by_value;
    ends_.begin(it, parts_, rank(), size(), route.what.by_value);
    announce();
    if (!touched_) return;
    pieced_ = combines() && !by_value;
    if (pieced_) {
      reduction_.begin(route, it_);
    } else if (!combines()) {
      move_own();
      if (!by_value) move_large();
    }
  }

  /// Makes the progress that is possible now. Throws comm_error.
  void advance() {
    if (at_ == stage::announcing && heard_.done(route)) {
      expect_agreement();
      if (touched_) take_small();
      at_ = stage::carrying;
    }
    if (at_ == stage::carrying && (pieced_ ? reduction_.advance() : first_.done(route))) {
      if (touched_ && it_.what.kind == collective::broadcast && !route.what.by_value && rank() != it_.what.root)
        forward();
      at_ = stage::spreading;
    }
    if (at_ == stage::spreading && second_.done(route)) finished.store(true, std::memory_order_release);
  }

  /// "rank 1", "ranks 1, 3": the peers whose messages are missing.
  [[nodiscard]] std::string missing() const {
    std::vector<int> late;
    if (at_ == stage::announcing) heard_.append_late(late, true);
    for (bool const receiving : {true, false}) {
      if (!late.empty()) break;
      if (!receiving) heard_.append_late(late, false);
      first_.append_late(late, receiving);
      second_.append_late(late, receiving);
      if (pieced_) reduction_.append_late(late, receiving);
    }
    std::ranges::sort(late);
    late.erase(std::unique(late.begin(), late.end()), late.end());
    std::string out = late.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < late.size(); ++i) out += text(i == 0 ? "" : ", ", late[i]);
    return late.empty() ? "the others" : out;
  }

  /// What it is, while its driver waits for it.
  [[nodiscard]] late_call as_late() const {
    return {rank(), text(to_string(route.what), " number ", route.number), bytes(it_.what.count), missing()};
  }

  /// After a failure: gives memory back to the caller as far as MPI lets go of it.
  void cancel() noexcept {
    for (auto* each : {&heard_, &first_, &second_}) each->cancel();
    if (pieced_) reduction_.cancel();
  }

 private:
  enum class stage : std::uint8_t { announcing, carrying, spreading };
  struct message_head {
    std::int64_t count;
    dtype type;
  };
  static constexpr std::size_t capacity = sizeof(call) + mpi_small_bytes;
  static_assert(sizeof(message_head) <= sizeof(call));

  [[nodiscard]] int rank() const noexcept { return where->rank; }
  [[nodiscard]] int size() const noexcept { return where->size; }
  [[nodiscard]] std::size_t bytes(std::int64_t count) const noexcept {
    return static_cast<std::size_t>(count) * it_.element_bytes;
  }
  [[nodiscard]] bool combines() const noexcept { return it_.elements != nullptr && it_.elements->combine != nullptr; }
  /// Whether a message of so many elements travels with its announcement.
  [[nodiscard]] bool rides(std::int64_t count) const noexcept {
    return parts_.empty() ? route.what.by_value : bytes(count) <= mpi_small_bytes;
  }

  void announce() {
    auto const p = static_cast<std::size_t>(size());
    auto* const received = received_.at_least(p * capacity);
    auto* const sent = sent_.at_least(p * capacity);
    using enum collective;
    auto const kind = it_.what.kind;
    bool const alike = kind == barrier || kind == all_reduce || kind == all_gather || kind == broadcast;
    std::size_t length = 0;
    for (int step = 1; step < size(); ++step) {
      int const source = (rank() - step + size()) % size();
      int const target = (rank() + step) % size();
      heard_.receive(route, received + static_cast<std::size_t>(source) * capacity, capacity, source, route.tag);
      auto* const out = alike ? sent : sent + static_cast<std::size_t>(target) * capacity;
      if (!alike || step == 1) length = write_announcement(out, target);
      heard_.send(route, out, length, target, route.tag);
    }
  }
  [[nodiscard]] std::size_t write_announcement(std::byte* out, int target) const {
    auto const values = ends_.outgoing(target);
    auto head = route.what;
    if (!parts_.empty()) head.count = values.count;
    std::memcpy(out, &head, sizeof head);
    if (!touched_ || values.count == 0 || !rides(values.count)) return sizeof head;
    std::memcpy(out + sizeof head, values.at, bytes(values.count));
    return sizeof head + bytes(values.count);
  }

  void move_own() const {
    auto const source = ends_.outgoing(rank());
    auto const target = ends_.incoming(rank());
    if (target.count > 0 && target.at != source.at) std::memmove(target.at, source.at, bytes(target.count));
  }
  void move_large() {
    for (int step = 1; step < size(); ++step) {
      int const source = (rank() - step + size()) % size();
      int const target = (rank() + step) % size();
      if (auto const in = ends_.incoming(source); in.count > 0 && !rides(in.count))
        first_.receive(route, in.at, bytes(in.count), source, route.tag + 1);
      if (auto const out = ends_.outgoing(target); out.count > 0 && !rides(out.count))
        first_.send(route, out.at, bytes(out.count), target, route.tag + 1);
    }
    // A large broadcast: the root sends each rank one slice, which that rank passes on to the others.
    if (it_.what.kind != collective::broadcast) return;
    if (rank() == it_.what.root) {
      forward();
    } else {
      for (int source = 0; source < size(); ++source)
        if (auto const part = ends_.slice_for(source); source != rank() && part.count > 0)
          second_.receive(route, ends_.to(part.first, 0).at, bytes(part.count), source, route.tag + 2);
    }
  }
  void forward() {
    auto const mine = ends_.slice_for(rank());
    if (mine.count == 0) return;
    auto const* const values = rank() == it_.what.root ? ends_.from(mine.first, 0).at : ends_.to(mine.first, 0).at;
    for (int step = 1; step < size(); ++step)
      if (int const target = (rank() + step) % size(); target != it_.what.root)
        second_.send(route, values, bytes(mine.count), target, route.tag + 2);
  }

  /// Puts values that travelled with announcements in their places, or combines them.
  void take_small() {
    if (it_.what.kind == collective::exchange) {
      for (std::size_t i = 0; i < parts_.size(); ++i)
        if (auto const& part = parts_[i]; !part.sent && rides_alone(part) && part.count > 0)
          std::memcpy(part.address, received_.data() + i * capacity + sizeof(message_head), bytes_of(part));
      return;
    }
    if (!combines()) {
      for (int peer = 0; peer < size(); ++peer)
        if (auto const in = ends_.incoming(peer); peer != rank() && in.count > 0 && rides(in.count))
          std::memcpy(in.at, values_of(peer), bytes(in.count));
      return;
    }
    auto const kind = it_.what.kind;
    if (!route.what.by_value || (kind == collective::reduce && rank() != it_.what.root)) return;
    auto const mine = kind == collective::reduce_scatter ? ends_.slice_for(rank()) : interval{0, it_.what.count};
    if (mine.count == 0) return;
    terms_.clear();
    for (int peer = 0; peer < size(); ++peer)
      terms_.push_back(peer == rank() ? ends_.from(mine.first, 0).at : values_of(peer));
    void* const result = ends_.to(mine.first, 0).at;
    it_.elements->combine({&result, 1}, terms_, mine.count, it_.divisor != 0 ? it_.divisor : size());
  }
  [[nodiscard]] std::byte const* values_of(int peer) const noexcept {
    return received_.data() + static_cast<std::size_t>(peer) * capacity + sizeof(call);
  }

  void expect_agreement() const {
    if (!asserts(assertion_level::normal)) return;
    if (it_.what.kind == collective::exchange) return expect_equal_ends();
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      call theirs;
      std::memcpy(&theirs, received_.data() + static_cast<std::size_t>(peer) * capacity, sizeof theirs);
      auto const count = theirs.count;
      if (!parts_.empty()) theirs.count = 0;
      if (theirs != route.what)
        throw comm_error(peer < rank() ? differing_calls(mpi_name, route.number, peer, theirs, rank(), route.what)
                                       : differing_calls(mpi_name, route.number, rank(), route.what, peer, theirs));
      if (parts_.empty()) continue;
      auto const& expected = parts_[static_cast<std::size_t>(size() + peer)];
      if (count != expected.count)
        throw comm_error(
            differing_transfers(mpi_name, peer, {rank(), true, theirs.type, count, nullptr}, rank(), expected));
    }
  }

  // --- exchange: each message has an announcement of its own

  [[nodiscard]] static std::size_t bytes_of(part const& it) noexcept {
    return static_cast<std::size_t>(it.count) * size_of(it.type);
  }
  [[nodiscard]] static bool rides_alone(part const& it) noexcept { return bytes_of(it) <= mpi_small_bytes; }

  void begin_exchange() {
    auto* const received = received_.at_least(parts_.size() * capacity);
    auto* const sent = sent_.at_least(parts_.size() * capacity);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      auto const& part = parts_[i];
      bool const large = touched_ && !rides_alone(part);
      if (!part.sent) {
        heard_.receive(route, received + i * capacity, capacity, part.peer, route.tag);
        if (large) first_.receive(route, part.address, bytes_of(part), part.peer, route.tag + 1);
        continue;
      }
      auto* const out = sent + i * capacity;
      message_head const head{part.count, part.type};
      std::memcpy(out, &head, sizeof head);
      auto const carried = touched_ && !large ? bytes_of(part) : 0;
      if (carried > 0) std::memcpy(out + sizeof head, part.address, carried);
      heard_.send(route, out, sizeof head + carried, part.peer, route.tag);
      if (large) first_.send(route, part.address, bytes_of(part), part.peer, route.tag + 1);
    }
  }
  void expect_equal_ends() const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      auto const& part = parts_[i];
      if (part.sent) continue;
      message_head head;
      std::memcpy(&head, received_.data() + i * capacity, sizeof head);
      if (head.count != part.count || head.type != part.type)
        throw comm_error(
            differing_transfers(mpi_name, part.peer, {rank(), true, head.type, head.count, nullptr}, rank(), part));
    }
  }

  command it_;
  std::vector<part> parts_;
  rank_stretches ends_;
  bool touched_ = false;
  bool pieced_ = false;
  stage at_ = stage::announcing;
  mpi_messages heard_, first_, second_;
  mpi_reduction reduction_;
  mpi_buffer received_, sent_;
  std::vector<void const*> terms_;
};

}  // namespace trireme::comm::detail
