#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/comm/command.hpp"
#include "trireme/core/interval.hpp"

namespace trireme::comm {

/// Elements of one cache line, at least one.
[[nodiscard]] constexpr std::int64_t line_of(std::size_t element_bytes) noexcept {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(64 / element_bytes));
}

/// The elements of `count` that rank `rank` of `size` works on in all_reduce and broadcast. Cut at multiples of a cache
/// line, so that no two ranks write to one line; the first ranks take one line more.
[[nodiscard]] constexpr interval slice_of(std::int64_t count, std::size_t element_bytes, int rank, int size) noexcept {
  auto const line = line_of(element_bytes);
  auto const lines = (count + line - 1) / line;
  auto const each = lines / size;
  auto const larger = lines % size;
  auto const first = std::min(count, (rank * each + std::min<std::int64_t>(rank, larger)) * line);
  auto const last = std::min(count, first + (each + (rank < larger ? 1 : 0)) * line);
  return {first, last - first};
}

/// The row of one call among `size` ranks.
struct geometry {
  call const& what;
  std::size_t element_bytes;
  int size;
  std::span<std::int64_t const> counts{};  ///< of a ragged call: elements of each rank
  std::span<std::int64_t const> firsts{};  ///< prefix sums of `counts`, if already computed

  [[nodiscard]] constexpr row const& of() const noexcept { return row_of(what.kind); }
  [[nodiscard]] constexpr bool gives(move const& it, int rank) const noexcept {
    return it.senders == side::all || rank == what.root;
  }
  [[nodiscard]] constexpr bool takes(move const& it, int rank) const noexcept {
    return it.receivers == side::all || rank == what.root;
  }
  /// Elements of the view that is cut into slices.
  [[nodiscard]] constexpr std::int64_t all() const noexcept {
    return of().into == cut::per_rank ? what.count * size : what.count;
  }
  [[nodiscard]] constexpr std::int64_t owned_count(int rank) const noexcept {
    if (!counts.empty()) return counts[static_cast<std::size_t>(rank)];
    if (of().into == cut::lines) return slice_of(what.count, element_bytes, rank, size).count;
    return of().into == cut::per_rank ? what.count : what.count / size;
  }
  /// The largest number of elements that a rank owns.
  [[nodiscard]] constexpr std::int64_t largest() const noexcept {
    return counts.empty() ? owned_count(0) : *std::max_element(counts.begin(), counts.end());
  }
  [[nodiscard]] constexpr interval owned(int rank) const noexcept {
    if (of().into == cut::lines) return slice_of(what.count, element_bytes, rank, size);
    if (counts.empty()) return {rank * owned_count(rank), owned_count(rank)};
    if (!firsts.empty()) return {firsts[static_cast<std::size_t>(rank)], owned_count(rank)};
    interval out{0, owned_count(rank)};
    for (int below = 0; below < rank; ++below) out.first += owned_count(below);
    return out;
  }
  /// What `sender` sends to `receiver`, as elements of the giver's view; empty if one of them takes no part in the
  /// move.
  [[nodiscard]] constexpr interval given(move const& it, int sender, int receiver) const noexcept {
    return gives(it, sender) && takes(it, receiver) ? choose(it.given, sender, receiver) : interval{};
  }
  /// Its position, as elements of the taker's view.
  [[nodiscard]] constexpr interval taken(move const& it, int sender, int receiver) const noexcept {
    return gives(it, sender) && takes(it, receiver) ? choose(it.taken, sender, receiver) : interval{};
  }
  /// Elements that `sender` sends to `receiver`, as traffic counts them.
  [[nodiscard]] constexpr std::int64_t counted(move const& it, int sender, int receiver) const noexcept {
    if (!it.passed_on) return given(it, sender, receiver).count;
    return receiver == next(sender) && receiver != what.root ? what.count : 0;
  }
  /// Elements that `rank` sends to the others in all moves, as traffic counts them.
  [[nodiscard]] constexpr std::int64_t sent(int rank) const noexcept {
    auto const& moves = of();
    std::int64_t sum = 0;
    std::int64_t own = -1;  // needs a division, so computed once, when needed
    for (std::size_t i = 0; i < moves.count; ++i) {
      auto const& it = moves.moves[i];
      if (it.passed_on) {
        sum += counted(it, rank, next(rank));
        continue;
      }
      if (!gives(it, rank)) continue;
      auto const others = it.receivers == side::all ? size - 1 : rank == what.root ? 0 : 1;
      if (it.given == region::whole) {
        sum += what.count * others;
        continue;
      }
      if (own < 0) own = owned_count(rank);
      sum += it.given == region::of_sender ? own * others : all() - own;
    }
    return sum;
  }

 private:
  [[nodiscard]] constexpr int next(int rank) const noexcept { return rank + 1 == size ? 0 : rank + 1; }
  [[nodiscard]] constexpr interval choose(region which, int sender, int receiver) const noexcept {
    return which == region::whole ? interval{0, what.count} : owned(which == region::of_sender ? sender : receiver);
  }
};

}  // namespace trireme::comm
