#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/mpi/messages.hpp"
#include "trireme/comm/sum_order.hpp"

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
