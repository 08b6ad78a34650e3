#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/detail/kernels.hpp"
#include "trireme/comm/geometry.hpp"
#include "trireme/comm/mpi/messages.hpp"
#include "trireme/core/address.hpp"

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
