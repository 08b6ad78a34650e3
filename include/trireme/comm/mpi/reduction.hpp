#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/geometry.hpp"
#include "trireme/comm/mpi/messages.hpp"

namespace trireme::comm::detail {

/// A large all_reduce, reduce_scatter or reduce: every rank reduces one slice, piece by piece. A piece is gathered from
/// all ranks, combined in rank order, and sent to all (or the root), while the next pieces are under way.
class mpi_reduction {
 public:
  void begin(mpi_route const& route, command const& it, geometry const& cuts) {
    route_ = &route;
    from_ = static_cast<std::byte const*>(it.from);
    to_ = static_cast<std::byte*>(it.to);
    element_bytes_ = it.element_bytes;
    combine_ = it.elements->combine;
    divisor_ = it.divisor != 0 ? it.divisor : size();
    auto const line = line_of(element_bytes_);
    auto const wanted = std::clamp(most_bytes / static_cast<std::size_t>(size()), least_bytes, largest_piece_bytes);
    piece_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(wanted / 64)) * line;
    std::int64_t longest = 0;
    slices_.clear();
    for (int rank = 0; rank < size(); ++rank) longest = std::max(longest, slices_.emplace_back(cuts.owned(rank)).count);
    pieces_ = (longest + piece_ - 1) / piece_;
    finished_ = combined_ = next_ = 0;
    static_cast<void>(slots_.at_least(in_flight * static_cast<std::size_t>(size()) * bytes(piece_)));
    while (next_ < pieces_ && next_ < static_cast<std::int64_t>(in_flight)) gather(next_++);
  }

  /// Makes the progress that is possible now; true if all is done.
  bool advance() {
    for (auto piece = finished_; piece < next_; ++piece) {
      auto& it = flight(piece);
      if (it.at == stage::gathering && piece == combined_ && it.messages.done(*route_)) {
        combine(piece);  // in order, and so are the messages of the result
        ++combined_;
      }
      if (it.at == stage::spreading && it.messages.done(*route_)) it.at = stage::done;
    }
    while (finished_ < next_ && flight(finished_).at == stage::done) {
      ++finished_;
      if (next_ < pieces_) gather(next_++);
    }
    return finished_ == pieces_;
  }
  void append_late(std::vector<int>& peers, bool receiving) const {
    for (auto piece = finished_; piece < next_; ++piece)
      flights_[static_cast<std::size_t>(piece) % in_flight].messages.append_late(peers, receiving);
  }
  void cancel() noexcept {
    for (auto& each : flights_) each.messages.cancel();
  }

 private:
  static constexpr std::size_t in_flight = 3;
  static constexpr std::size_t most_bytes = std::size_t{2} << 20;  // of one piece of all ranks
  static constexpr std::size_t largest_piece_bytes = std::size_t{512} << 10;
  static constexpr std::size_t least_bytes = std::size_t{64} << 10;
  enum class stage : std::uint8_t { gathering, spreading, done };
  struct flight_of_a_piece {
    mpi_messages messages;
    stage at = stage::done;
  };

  [[nodiscard]] int rank() const noexcept { return route_->group->rank; }
  [[nodiscard]] int size() const noexcept { return route_->group->size; }
  [[nodiscard]] std::size_t bytes(std::int64_t count) const noexcept {
    return static_cast<std::size_t>(count) * element_bytes_;
  }
  [[nodiscard]] flight_of_a_piece& flight(std::int64_t piece) noexcept {
    return flights_[static_cast<std::size_t>(piece) % in_flight];
  }
  [[nodiscard]] interval piece_of(int rank, std::int64_t piece) const noexcept {
    auto const& all = slices_[static_cast<std::size_t>(rank)];
    auto const begin = std::min(all.count, piece * piece_);
    return {all.first + begin, std::min(piece_, all.count - begin)};
  }
  /// Where `rank`'s terms of a piece arrive. The own slot is free for a result that does not belong into `to`.
  [[nodiscard]] std::byte* slot(std::int64_t piece, int rank) const noexcept {
    auto const place = static_cast<std::size_t>(piece) % in_flight * static_cast<std::size_t>(size());
    return slots_.data() + (place + static_cast<std::size_t>(rank)) * bytes(piece_);
  }

  void gather(std::int64_t piece) {
    auto& it = flight(piece);
    it.at = stage::gathering;
    auto const mine = piece_of(rank(), piece);
    for_each_other(rank(), size(), [&](int source, int target) {
      if (mine.count > 0) it.messages.receive(*route_, slot(piece, source), bytes(mine.count), source, route_->tag + 1);
      if (auto const part = piece_of(target, piece); part.count > 0)
        it.messages.send(*route_, from_ + bytes(part.first), bytes(part.count), target, route_->tag + 1);
    });
  }

  void combine(std::int64_t piece) {
    auto& it = flight(piece);
    it.at = stage::spreading;
    auto const kind = route_->what.kind;
    bool const to_root = kind == collective::reduce;
    auto const mine = piece_of(rank(), piece);
    void* const result = to_root && rank() != route_->what.root ? slot(piece, rank()) : to_ + bytes(mine.first);
    if (mine.count > 0) {
      terms_.clear();
      for (int from = 0; from < size(); ++from)
        terms_.push_back(from == rank() ? from_ + bytes(mine.first) : slot(piece, from));
      combine_({&result, 1}, terms_, mine.count, divisor_);
    }
    if (kind == collective::reduce_scatter) return;
    for_each_other(rank(), size(), [&](int source, int target) {
      if (!to_root || rank() == route_->what.root)
        if (auto const part = piece_of(source, piece); part.count > 0)
          it.messages.receive(*route_, to_ + bytes(part.first), bytes(part.count), source, route_->tag + 2);
      if ((!to_root || target == route_->what.root) && mine.count > 0)
        it.messages.send(*route_, result, bytes(mine.count), target, route_->tag + 2);
    });
  }

  mpi_route const* route_ = nullptr;
  std::byte const* from_ = nullptr;
  std::byte* to_ = nullptr;
  std::size_t element_bytes_ = 1;
  void (*combine_)(std::span<void* const>, std::span<void const* const>, std::int64_t, int) = nullptr;
  int divisor_ = 1;
  std::int64_t piece_ = 1;  // elements
  std::int64_t pieces_ = 0;
  std::int64_t next_ = 0;         // the next piece to begin
  std::int64_t combined_ = 0;     // the next one to combine
  std::int64_t finished_ = 0;     // all pieces below are finished
  std::vector<interval> slices_;  // of each rank
  std::array<flight_of_a_piece, in_flight> flights_;
  byte_buffer slots_;
  std::vector<void const*> terms_;
};

}  // namespace trireme::comm::detail
