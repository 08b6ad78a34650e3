#pragma once

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/detail/collective_engine.hpp"
#include "trireme/comm/detail/expectations.hpp"
#include "trireme/comm/detail/roll_call.hpp"
#include "trireme/comm/detail/rounds.hpp"
#include "trireme/comm/detail/waiting.hpp"
#include "trireme/comm/late.hpp"
#include "trireme/comm/mpi/messages.hpp"
#include "trireme/comm/mpi/native.hpp"
#include "trireme/comm/mpi/reduction.hpp"
#include "trireme/core/plural.hpp"

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
