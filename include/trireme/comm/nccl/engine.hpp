#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/cuda.hpp"
#include "trireme/comm/gathering.hpp"
#include "trireme/comm/nccl/launch.hpp"
#include "trireme/comm/traffic.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm::detail {

[[nodiscard]] constexpr ncclDataType_t nccl_type(dtype type) noexcept {
  constexpr ncclDataType_t types[] = {ncclFloat64, ncclFloat32, ncclBfloat16, ncclFloat16, ncclInt64,
                                      ncclInt32,   ncclUint64,  ncclUint32,   ncclInt8,    ncclUint8};  // as dtype
  static_assert(static_cast<std::size_t>(dtype::u8) + 1 == std::size(types));
  return types[static_cast<std::size_t>(type)];
}

[[nodiscard]] constexpr ncclRedOp_t nccl_reduction(reduction_kind op) noexcept {
  if (op == reduction_kind::max) return ncclMax;
  if (op == reduction_kind::min) return ncclMin;
  return op == reduction_kind::mean ? ncclAvg : ncclSum;
}

/// Sends, receives and reductions that progress together; nothing happens until end(). Messages of a rank to itself are
/// copied.
class nccl_group {
 public:
  explicit nccl_group(nccl_communicator& where) : where_(where) {
    where_.expect(ncclGroupStart(), "beginning a group");
  }
  nccl_group(nccl_group const&) = delete;
  nccl_group& operator=(nccl_group const&) = delete;
  ~nccl_group() {
    if (!ended_) (void)ncclGroupEnd();
  }
  void send(int peer, void const* from, std::size_t bytes) {
    if (bytes > 0) note(ncclSend(from, bytes, ncclUint8, peer, where_.handle(), where_.stream()));
  }
  void receive(int peer, void* to, std::size_t bytes) {
    if (bytes > 0) note(ncclRecv(to, bytes, ncclUint8, peer, where_.handle(), where_.stream()));
  }
  /// Reduces the elements at `from` of all ranks into `to` at the root.
  void reduce(int root, void const* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op) {
    if (count > 0) note(ncclReduce(from, to, count, type, op, root, where_.handle(), where_.stream()));
  }
  void end() {
    ended_ = true;
    note(ncclGroupEnd());
    where_.expect(first_, "a group of calls");
  }

 private:
  void note(ncclResult_t code) noexcept {
    if (nccl_went_well(first_)) first_ = code;
  }
  nccl_communicator& where_;
  ncclResult_t first_ = ncclSuccess;
  bool ended_ = false;
};

/// One command as calls of NCCL, which it starts; they are in progress once the communicator has settled.
class nccl_issue {
 public:
  /// `await()` returns when all calls issued before are queued on the stream.
  template <class Await>
  nccl_issue(nccl_communicator& where, nccl_operation& op, command const& it, Await&& await)
      : where_(where),
        it_(it),
        rank_(where.rank()),
        size_(where.size()),
        cuts_{it.what, it.element_bytes, size_, it.counts},
        stream_(where.stream()) {
    bool const reduces = it.what.op != reduction_kind::none;
    // NCCL's own mean divides by the number of its ranks, and its sums have no fixed tree.
    bool const pairwise = it.what.op == reduction_kind::pairwise && size_ > 1;
    bool const mean = it.what.op == reduction_kind::mean && it.divisor != 0 && it.divisor != size_;
    if (mean && size_ > most_cuda_terms)
      throw config_error(text(nccl_who, ": a mean over ", how_many(it.divisor, "rank"), " on ", size_,
                              " ranks of NCCL; at most ", most_cuda_terms,
                              " are supported: use a sum, and divide afterwards"));
    if (pairwise && size_ > most_cuda_terms)
      throw config_error(text(nccl_who, ": a pairwise sum on ", size_, " ranks of NCCL; at most ", most_cuda_terms,
                              " are supported: use reduction::sum"));
    if (pairwise || mean || (reduces && where.launch().ordered && size_ > 1))
      reduce_in_order(op, await);
    else if (reduces || it.what.kind == collective::barrier)
      reduce();
    else
      move();
  }

 private:
  [[nodiscard]] std::size_t bytes(std::int64_t count) const noexcept {
    return static_cast<std::size_t>(count) * it_.element_bytes;
  }
  [[nodiscard]] std::byte* to(std::int64_t first) const noexcept {
    return static_cast<std::byte*>(it_.to) + bytes(first);
  }
  [[nodiscard]] std::byte const* from(std::int64_t first) const noexcept {
    return static_cast<std::byte const*>(it_.from) + bytes(first);
  }
  void copy(void* target, void const* source, std::size_t length) const {
    if (length == 0 || target == source) return;
    trireme::detail::expect_cuda(::cudaMemcpyAsync(target, source, length, cudaMemcpyDeviceToDevice, stream_),
                                 "trireme::comm::nccl: copying what a rank sends to itself");
  }

  void reduce() {
    auto const name = name_of(it_.what.kind);
    auto const type = nccl_type(it_.what.type);
    auto const op = nccl_reduction(it_.what.op);
    auto const count = static_cast<std::size_t>(it_.what.count);
    auto const comm = where_.handle();
    using enum collective;
    if (it_.what.kind == barrier) {
      auto* const nothing = where_.launch().scratch();
      where_.expect(ncclAllReduce(nothing, nothing, 1, ncclInt32, ncclSum, comm, stream_), name);
    } else if (count == 0) {
      return;
    } else if (it_.what.kind == all_reduce) {
      where_.expect(ncclAllReduce(it_.from, it_.to, count, type, op, comm, stream_), name);
    } else if (it_.what.kind == reduce) {
      auto* const into = rank_ == it_.what.root ? it_.to : nullptr;
      where_.expect(ncclReduce(it_.from, into, count, type, op, it_.what.root, comm, stream_), name);
    } else if (it_.what.shape == 0) {
      auto const own = cuts_.owned(rank_);
      where_.expect(
          ncclReduceScatter(it_.from, to(own.first), static_cast<std::size_t>(own.count), type, op, comm, stream_),
          name);
    } else {  // ragged
      nccl_group group(where_);
      for (int rank = 0; rank < size_; ++rank) {
        auto const slice = cuts_.owned(rank);
        group.reduce(rank, from(slice.first), rank == rank_ ? to(slice.first) : nullptr,
                     static_cast<std::size_t>(slice.count), type, op);
      }
      group.end();
    }
  }

  void move() {
    auto const count = it_.what.count;
    auto const name = name_of(it_.what.kind);
    auto const& does = cuts_.of().moves[0];
    if (!it_.raw_transfers.empty()) {
      exchange_transfers(it_.raw_transfers);
    } else if (cuts_.of().count == 0 || count == 0) {
      return;
    } else if (it_.what.kind == collective::broadcast) {
      where_.expect(ncclBroadcast(it_.from, it_.to, bytes(count), ncclUint8, it_.what.root, where_.handle(), stream_),
                    name);
    } else if (it_.what.kind == collective::all_gather && it_.what.shape == 0) {
      auto const own = cuts_.owned(rank_);
      where_.expect(ncclAllGather(from(own.first), it_.to, bytes(own.count), ncclUint8, where_.handle(), stream_),
                    name);
    } else {  // the moves of the row, as messages between each pair of ranks
      auto const own = cuts_.given(does, rank_, rank_);
      copy(to(cuts_.taken(does, rank_, rank_).first), from(own.first), bytes(own.count));
      nccl_group group(where_);
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        auto const given = cuts_.given(does, rank_, peer);
        auto const taken = cuts_.taken(does, peer, rank_);
        group.send(peer, from(given.first), bytes(given.count));
        group.receive(peer, to(taken.first), bytes(taken.count));
      }
      group.end();
    }
  }

  /// The k-th transfer from this rank to itself is matched with the k-th one that it receives, within the command.
  void exchange_transfers(std::span<raw_transfer const> raw_transfers) {
    auto const length = [](raw_transfer const& it) { return static_cast<std::size_t>(it.count) * size_of(it.type); };
    auto const next_own = [&](std::size_t at, bool sent) {
      while (at < raw_transfers.size() && (raw_transfers[at].peer != rank_ || raw_transfers[at].sent != sent)) ++at;
      return at;
    };
    auto send = next_own(0, true);
    auto receive = next_own(0, false);
    for (; send < raw_transfers.size() && receive < raw_transfers.size();
         send = next_own(send + 1, true), receive = next_own(receive + 1, false)) {
      if (raw_transfers[send].type != raw_transfers[receive].type ||
          raw_transfers[send].count != raw_transfers[receive].count)
        throw config_error(text(nccl_who, "::", name_of(it_.what.kind), ": rank ", rank_, " sends itself ",
                                how_many(raw_transfers[send].count, "element"), " of ",
                                name_of(raw_transfers[send].type), " but receives ", raw_transfers[receive].count,
                                " of ", name_of(raw_transfers[receive].type)));
      copy(raw_transfers[receive].address, raw_transfers[send].address, length(raw_transfers[send]));
    }
    if (send < raw_transfers.size() || receive < raw_transfers.size())
      throw config_error(text(nccl_who, "::", name_of(it_.what.kind), ": rank ", rank_,
                              " sends to itself without a receive, or the reverse; put both into one exchange"));
    nccl_group group(where_);
    for (auto const& each : raw_transfers) {
      if (each.peer == rank_) continue;
      each.sent ? group.send(each.peer, each.address, length(each))
                : group.receive(each.peer, each.address, length(each));
    }
    group.end();
  }

  /// This rank collects its slice from all others and reduces it in rank order, or in the tree over the ranks; then
  /// slices are sent where the collective needs them.
  template <class Await>
  void reduce_in_order(nccl_operation& op, Await&& await) {
    auto const own = cuts_.owned(rank_);
    auto const room = (bytes(own.count) + 63) / 64 * 64;
    auto* const others = op.terms(std::max<std::size_t>(64, room * static_cast<std::size_t>(size_)));
    auto const place_of = [&](int rank) { return others + static_cast<std::size_t>(rank) * room; };
    {
      nccl_group group(where_);
      for (int rank = 0; rank < size_; ++rank) {
        if (rank == rank_) continue;
        auto const theirs = cuts_.owned(rank);
        group.send(rank, from(theirs.first), bytes(theirs.count));
        group.receive(rank, place_of(rank), bytes(own.count));
      }
      group.end();
    }
    await();
    // A rank that is not the root keeps its own values: its result goes to the memory of its term.
    bool const kept = it_.what.kind != collective::reduce || rank_ == it_.what.root;
    std::vector<void const*> terms;
    for (int rank = 0; rank < size_; ++rank)
      terms.push_back(rank == rank_ ? static_cast<void const*>(from(own.first)) : place_of(rank));
    void* const output = kept ? to(own.first) : place_of(rank_);
    trireme::detail::expect_cuda(static_cast<::cudaError_t>(cuda_combine(
                                     cuda_element_of(it_.what.type), cuda_reduction_of(it_.what.op), &output, 1,
                                     terms.data(), size_, own.count, it_.divisor != 0 ? it_.divisor : size_, stream_)),
                                 "trireme::comm::nccl: reducing in rank order");
    if (cuts_.of().into != cut::lines) return;  // each rank keeps its slice
    nccl_group group(where_);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      bool const wanted_there = it_.what.kind == collective::all_reduce || rank == it_.what.root;
      auto const theirs = cuts_.owned(rank);
      if (wanted_there) group.send(rank, output, bytes(own.count));
      if (kept) group.receive(rank, to(theirs.first), bytes(theirs.count));
    }
    group.end();
  }

  nccl_communicator& where_;
  command const& it_;
  int rank_, size_;
  geometry cuts_;
  ::cudaStream_t stream_;
};

[[nodiscard]] inline std::string describe(nccl_operation const& op) {
  if (op.what.kind != collective::exchange)
    return text(to_string(op.what), " number ", op.number, to_string(op.what.label));
  if (op.along == route{}) return text("exchange, call number ", op.number);
  return text("exchange from rank ", op.along.from, " to rank ", op.along.to, ", call number ", op.number);
}

/// Whether `op` is later than its deadline, counted from the first look at it.
[[nodiscard]] inline bool is_late(nccl_operation& op) {
  auto const now = std::chrono::steady_clock::now();
  if (op.since == std::chrono::steady_clock::time_point{}) op.since = now;
  return now - op.since > op.deadline;
}
[[nodiscard]] inline std::string late_sentence(nccl_operation const& op, std::chrono::milliseconds deadline) {
  // Without routes all messages of a rank are in one order.
  auto const* const hint = op.what.kind != collective::exchange || !(op.along == route{})
                               ? ""
                               : " (a receive that is started before the send without which it never ends needs "
                                 "open_routes())";
  return text(describe(op), " waited ", to_string(deadline),
              " and is not done; find out why the other ranks are late, or raise comm::nccl{.deadline}", hint);
}

/// Of `ordered_operations`, the first that is not done and that `op` waits for; otherwise `op`.
[[nodiscard]] inline nccl_operation const& waited_for(nccl_launch& launch, nccl_operation const& op) {
  launch.collect_ordered();
  // The thread's stream waits for them in this order, and `op` for all that the stream waited for when it began.
  for (auto const* const each : launch.ordered_operations) {
    bool const is_before = each->lane == op.lane ? each->began < op.began : each->ordered_at < op.began;
    if (is_before && ::cudaEventQuery(each->done) == cudaErrorNotReady) {
      (void)::cudaGetLastError();
      return *each;
    }
  }
  return op;
}
/// Fails the launch if `op` has waited longer than its communicator's deadline.
inline void check_patience(nccl_operation& op) {
  if (++op.polls % 16 != 0 || !is_late(op)) return;
  op.where->fail(late_sentence(waited_for(op.where->launch(), op), op.deadline));
}

/// Makes the progress that is possible now with one part of an operation; true once it is done. Throws if the launch
/// has failed.
inline bool advance_part(nccl_operation& op) {
  auto& where = *op.where;
  if (op.at == nccl_operation::stage::finished) return true;
  where.launch().throw_if_failed(name_of(op.what.kind));
  if (op.at == nccl_operation::stage::launching) {
    if (!where.settled(describe(op))) {
      check_patience(op);
      return false;
    }
    if (op.staged) op.staging.fetch(where.stream());
    trireme::detail::expect_cuda(::cudaEventRecord(op.done, where.stream()), "trireme::comm::nccl: recording an event");
    op.at = nccl_operation::stage::running;
    if (op.lane->launching == &op) op.lane->launching = nullptr;
  }
  auto const code = ::cudaEventQuery(op.done);
  if (code == cudaErrorNotReady) {
    (void)::cudaGetLastError();
    if (op.polls % 64 == 0) (void)where.settled(describe(op));  // an error elsewhere ends the wait
    check_patience(op);
    return false;
  }
  if (code != cudaSuccess)
    where.fail(text(describe(op), " failed: CUDA reports: ", trireme::detail::cuda_sentence(code)));
  if (op.staged) op.staging.deliver();
  op.at = nccl_operation::stage::finished;
  return true;
}
/// The same with all parts.
inline bool advance(nccl_operation& op) {
  bool done = advance_part(op);
  for (auto* const each : op.also) done = advance_part(*each) && done;
  return done;
}
inline void order_part(nccl_operation& op) {
  if (op.staged) return trireme::detail::poll_until([&] { return advance_part(op); });  // its result is for the host
  trireme::detail::poll_until([&] { return advance_part(op) || op.at != nccl_operation::stage::launching; });
  if (op.at == nccl_operation::stage::finished) return;
  auto& launch = op.where->launch();
  trireme::detail::expect_cuda(::cudaStreamWaitEvent(cuda::stream(), op.done, 0),
                               "trireme::comm::nccl: ordering streams");
  trireme::detail::cuda_watches::of_thread().add(launch.watch);
  op.ordered = true;
  op.ordered_at = ++launch.moments;
}
inline void release_part(nccl_operation& op) noexcept {
  auto& launch = op.where->launch();
  if (op.lane->launching == &op) op.lane->launching = nullptr;
  if (std::exchange(op.ordered, false) && !launch.failed())
    launch.ordered_operations.push_back(&op);
  else
    op.lane->idle.push_back(&op);
}

inline bool nccl_communicator::test(nccl_operation& op) { return advance(op); }
inline void nccl_communicator::wait(nccl_operation& op) {
  trireme::detail::poll_until([&] { return advance(op); });
}
inline void nccl_communicator::order(nccl_operation& op) {
  order_part(op);
  for (auto* const each : op.also) order_part(*each);
}
inline void nccl_communicator::release(nccl_operation& op) noexcept {
  for (auto* const each : op.also) release_part(*each);
  op.also.clear();
  release_part(op);
}

inline void nccl_launch::collect_ordered() {
  auto const done = std::ranges::find_if(ordered_operations, [&](nccl_operation* each) {
    if (failed() || ::cudaEventQuery(each->done) != cudaErrorNotReady) return false;
    (void)::cudaGetLastError();
    return true;
  });
  for (auto each = ordered_operations.begin(); each != done; ++each) (*each)->lane->idle.push_back(*each);
  ordered_operations.erase(ordered_operations.begin(), done);
}
inline void nccl_launch::look_at_ordered() {
  throw_if_failed("waiting for the device");
  collect_ordered();
  if (ordered_operations.empty()) return;
  auto& first = *ordered_operations.front();
  auto const doing = describe(first);
  for (auto* const each : live_) (void)each->settled(doing);
  if (!is_late(first)) return;
  fail(text(nccl_who, ": ", late_sentence(first, first.deadline)));
  throw_if_failed(doing);
}

/// Starts one part of a command, which is in one lane; return the operation by release().
[[nodiscard]] inline nccl_operation& begin_part(nccl_communicator& where, command const& it) {
  auto& launch = where.launch();
  auto& lane = where.lane();
  launch.throw_if_failed(name_of(it.what.kind));
  // Earlier commands are queued first, so that all ranks queue in one order.
  if (auto* const before = lane.launching; before != nullptr)
    trireme::detail::poll_until([&] {
      (void)advance_part(*before);
      return before->at != nccl_operation::stage::launching;
    });
  launch.collect_ordered();
  trireme::detail::cuda_postponed_frees::of_thread().free_what_may();
  if (lane.idle.empty()) {
    lane.idle.reserve(lane.owned.size() + 1);  // so that release() and collect_ordered() need no memory
    launch.ordered_operations.reserve(launch.operations + 1);
    lane.owned.push_back(std::make_unique<nccl_operation>());
    ++launch.operations;
    lane.idle.push_back(lane.owned.back().get());
  }
  auto& op = *lane.idle.back();
  lane.idle.pop_back();
  op.where = &where;
  op.lane = &lane;
  op.along = where.along;
  op.what = it.what;
  op.number = ++where.calls;
  op.at = nccl_operation::stage::launching;
  op.staged = it.elements != nullptr && it.elements->touchable;
  op.ordered = false;
  op.deadline = where.deadline;
  op.polls = 0;
  op.since = {};
  op.began = ++launch.moments;
  try {
    lane.follow_thread();
    auto const there = op.staged ? op.staging.on_device(it, where.rank(), where.size(), where.stream()) : it;
    nccl_issue(where, op, there, [&] {
      trireme::detail::poll_until([&] {
        if (where.settled(describe(op))) return true;
        check_patience(op);
        return false;
      });
    });
  } catch (config_error const&) {  // nothing has been issued
    release_part(op);
    throw;
  } catch (std::exception const& problem) {
    auto const sentence = text(describe(op), ": ", problem.what());
    release_part(op);
    launch.throw_if_failed(name_of(it.what.kind));
    where.fail(sentence);
  }
  lane.launching = &op;
  return op;
}

/// Starts an exchange of a communicator with routes: what goes along one of them is a part of its own.
[[nodiscard]] inline nccl_operation& begin_exchange(nccl_communicator& where, command const& it) {
  where.unrouted.clear();
  for (auto const& each : where.routes) each->part.clear();
  for (auto each : it.raw_transfers) {
    auto* const found = where.find(each.sent ? route{where.rank(), each.peer} : route{each.peer, where.rank()});
    if (found != nullptr) each.peer = each.sent ? 1 : 0;
    (found != nullptr ? found->part : where.unrouted).push_back(each);
  }
  nccl_operation* first = nullptr;
  auto const add = [&](nccl_communicator& there, std::vector<raw_transfer> const& transfers) {
    if (transfers.empty()) return;
    command part = it;
    part.raw_transfers = transfers;
    auto& op = begin_part(there, part);
    if (first == nullptr)
      first = &op;
    else
      first->also.push_back(&op);
  };
  try {
    add(where, where.unrouted);  // first: only what a rank sends to itself can be refused
    for (auto const& each : where.routes) add(*each->pair, each->part);
  } catch (...) {
    if (first != nullptr) where.release(*first);
    throw;
  }
  return first != nullptr ? *first : begin_part(where, it);
}
/// Starts a command on the device; return the operation by release().
[[nodiscard]] inline nccl_operation& begin(std::shared_ptr<nccl_communicator> const& where, command const& it) {
  bool const has_parts = it.what.kind == collective::exchange && !where->routes.empty();
  return has_parts ? begin_exchange(*where, it) : begin_part(*where, it);
}

/// Routes that are opened together: no rank is in two of them.
[[nodiscard]] inline std::vector<std::vector<route>> rounds_of(std::span<route const> routes) {
  std::vector<std::vector<route>> rounds;
  for (auto const& each : routes) {
    auto const meets = [&](route const& other) {
      return other.from == each.from || other.from == each.to || other.to == each.from || other.to == each.to;
    };
    auto const free = std::ranges::find_if(
        rounds, [&](std::vector<route> const& round) { return std::ranges::none_of(round, meets); });
    (free != rounds.end() ? *free : rounds.emplace_back()).push_back(each);
  }
  return rounds;
}

/// The NCCL communicator of a route has at most so many blocks of a kernel: a receive that waits occupies as many
/// multiprocessors, and NCCL keeps buffers for each.
inline constexpr int most_blocks_of_route = 4;

/// Opens the route of this rank in a round, or takes part in splitting if it has none. Its first message is sent here,
/// because two ranks of NCCL connect in it: it is not issued before both have it.
inline void open_route_of_round(nccl_communicator& where, std::vector<route> const& round) {
  auto const own = std::ranges::find_if(
      round, [&](route const& each) { return each.from == where.rank() || each.to == where.rank(); });
  auto const split = [&](int color, int key, ncclComm_t* made, ncclConfig_t* config) {
    where.expect(ncclCommSplit(where.handle(), color, key, made, config), "opening a route");
    where.wait_until_settled("opening a route");
    return ncclSuccess;
  };
  if (own == round.end()) {
    ncclComm_t none = nullptr;
    auto config = nccl_configuration();
    (void)split(NCCL_SPLIT_NOCOLOR, 0, &none, &config);
    return;
  }
  bool const sends = own->from == where.rank();
  auto made = std::make_unique<nccl_route>(where.launch(), *own);
  made->pair = std::make_shared<nccl_communicator>(
      where.shared_launch(), where.deadline,
      [&](ncclComm_t* handle, ncclConfig_t* config) {
        config->maxCTAs = most_blocks_of_route;
        return split(static_cast<int>(own - round.begin()), sends ? 0 : 1, handle, config);
      },
      &made->lane, *own);
  raw_transfer const message{.peer = sends ? 1 : 0,
                             .sent = sends,
                             .type = dtype::u8,
                             .count = 1,
                             .address = where.launch().scratch_of_routes()};
  auto& pair = *made->pair;
  auto& op = begin_part(pair, {.what = {collective::exchange}, .raw_transfers = {&message, 1}});
  try {
    pair.wait(op);
  } catch (...) {
    pair.release(op);
    throw;
  }
  pair.release(op);
  pair.calls = 0;
  where.routes.push_back(std::move(made));
}

/// Collective, with the same list on all ranks.
inline void open_routes(nccl_communicator& where, std::span<route const> wanted) {
  std::vector<route> routes;
  for (auto const& each : wanted) {
    auto const is_rank = [&](int rank) { return rank >= 0 && rank < where.size(); };
    if (!is_rank(each.from) || !is_rank(each.to) || each.from == each.to)
      throw config_error(text(nccl_who, "::open_routes: there is no route from rank ", each.from, " to rank ", each.to,
                              " of ", how_many(where.size(), "rank"),
                              "; name two different ranks of this communicator"));
    if (std::ranges::find(where.opened, each) == where.opened.end()) {
      where.opened.push_back(each);
      routes.push_back(each);
    }
  }
  for (auto const& round : rounds_of(routes)) open_route_of_round(where, round);
  trireme::detail::cuda_postponed_frees::of_thread().add(where.launch().messages_wait);
}

/// How many devices this process sees. Throws config_error if there is none.
[[nodiscard]] inline int visible_devices() {
  int devices = 0;
  auto const code = ::cudaGetDeviceCount(&devices);
  (void)::cudaGetLastError();
  if (code != cudaSuccess || devices == 0)
    throw config_error(text(nccl_who,
                            ": there is no CUDA device here (CUDA reports: ", trireme::detail::cuda_sentence(code),
                            "); run on a machine with one, or use another communicator"));
  return devices;
}

/// This thread's device as other ranks see it: two ranks with the same text are on one device.
[[nodiscard]] inline std::string name_of_device() {
  int device = 0;
  trireme::detail::expect_cuda(::cudaGetDevice(&device), text(nccl_who, ": asking for the device"));
  char bus[32] = {};
  trireme::detail::expect_cuda(::cudaDeviceGetPCIBusId(bus, sizeof bus, device),
                               text(nccl_who, ": asking where device ", device, " is"));
  char machine[256] = {};
  (void)::gethostname(machine, sizeof machine - 1);
  return text(machine, " ", bus);
}

/// The id with which ranks form a communicator, from rank 0.
/// Errors   config_error if two ranks have one device, which NCCL refuses.
[[nodiscard]] inline ncclUniqueId agree_on_id(gathering const& ranks) {
  ncclUniqueId id{};
  std::string own;  // of rank 0: the id, and whether it could be made
  if (ranks.rank == 0) {
    bool const made = ncclGetUniqueId(&id) == ncclSuccess;
    own.assign(id.internal, sizeof id.internal);
    own += made ? 'y' : 'n';
  }
  auto const of_all = ranks.all_gather(own + name_of_device());
  constexpr auto of_id = sizeof id.internal + 1;
  if (of_all.empty() || of_all.front().size() < of_id || of_all.front()[of_id - 1] != 'y')
    throw comm_error(
        text(nccl_who, ": rank 0 could not make an id for the communicator; set NCCL_DEBUG=WARN for the reason"));
  std::map<std::string, std::size_t> rank_on;
  for (std::size_t rank = 0; rank < of_all.size(); ++rank) {
    auto const [found, is_first] = rank_on.emplace(of_all[rank].substr(rank == 0 ? of_id : 0), rank);
    if (!is_first)
      throw config_error(text(nccl_who, ": ranks ", found->second, " and ", rank, " have the same device (",
                              found->first,
                              "), which NCCL does not support; give each rank a device of its own, or use ",
                              "comm::threads with comm::in_space<cuda>(world), whose ranks share one"));
  }
  std::memcpy(id.internal, of_all.front().data(), sizeof id.internal);
  return id;
}

/// Makes `device` this thread's device; -1: the device with the process's number on its machine, or the only one that
/// the process sees.
inline void choose_device(int device, int local_rank) {
  auto const devices = visible_devices();
  auto const chosen = device >= 0 ? device : devices == 1 ? 0 : local_rank;
  if (chosen >= devices)
    throw config_error(text(nccl_who, ": this rank asks for device ", chosen, " of ", devices,
                            "; give every rank a device of its own (several ranks share one with comm::threads and ",
                            "comm::in_space<cuda>(world))"));
  trireme::detail::expect_cuda(::cudaSetDevice(chosen), text(nccl_who, ": choosing device ", chosen));
}

}  // namespace trireme::comm::detail
