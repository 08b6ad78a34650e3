#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/comm/command.hpp"
#include "trireme/core/interval.hpp"

namespace trireme::comm {

/// The part of `count` elements that rank `rank` of `size` works on in all_reduce and broadcast. Cut at multiples of a
/// cache line, the first ranks taking one line more, so that no two ranks write to one line.
[[nodiscard]] constexpr interval slice_of(std::int64_t count, std::size_t element_bytes, int rank, int size) noexcept {
  auto const line = static_cast<std::int64_t>(64 / element_bytes);
  auto const lines = (count + line - 1) / line;
  auto const each = lines / size;
  auto const larger = lines % size;
  auto const first = std::min(count, (rank * each + std::min<std::int64_t>(rank, larger)) * line);
  auto const last = std::min(count, first + (each + (rank < larger ? 1 : 0)) * line);
  return {first, last - first};
}

/// Which ranks have a side in a move.
enum class side : std::uint8_t { all, root };
/// Which elements of a view: all `count` of them, or those that the giver, or the taker, owns.
enum class piece : std::uint8_t { whole, of_giver, of_taker };
/// How a view is cut into what ranks own: at cache lines, into equal slices (ragged: by counts), or `count` a rank.
enum class cut : std::uint8_t { none, lines, equal, parts };

/// Each giver gives a piece of what it has to each taker, itself included.
struct move {
  side givers = side::all;
  side takers = side::all;
  piece given = piece::whole;  ///< of the giver's `from`
  piece taken = piece::whole;  ///< of the taker's `to`
  bool folds = false;          ///< what all givers give is combined, in rank order
};

/// What a collective moves, in this order. None where only calls meet, or where parts say it (exchange).
struct row {
  cut into = cut::none;
  std::uint8_t count = 0;
  std::array<move, 2> moves{};
};

namespace detail {
namespace moves {
inline constexpr move scatters{side::all, side::all, piece::of_taker, piece::of_taker, true};
inline constexpr move gathers{side::all, side::all, piece::of_giver, piece::of_giver};
inline constexpr move reduces{side::all, side::root, piece::whole, piece::whole, true};
inline constexpr move collects{side::all, side::root, piece::whole, piece::of_giver};
inline constexpr move deals{side::root, side::all, piece::of_taker, piece::whole};
inline constexpr move tells{side::root, side::all, piece::whole, piece::whole};
inline constexpr move trades{side::all, side::all, piece::of_taker, piece::of_giver};
}  // namespace moves

inline constexpr row rows_of_collectives[collective_kinds] = {
    {},                                                    // barrier
    {cut::lines, 2, {{moves::scatters, moves::gathers}}},  // all_reduce
    {cut::equal, 1, {{moves::scatters}}},                  // reduce_scatter
    {cut::lines, 1, {{moves::reduces}}},                   // reduce
    {cut::equal, 1, {{moves::gathers}}},                   // all_gather
    {cut::parts, 1, {{moves::collects}}},                  // gather
    {cut::parts, 1, {{moves::deals}}},                     // scatter
    {cut::lines, 1, {{moves::tells}}},                     // broadcast
    {cut::equal, 1, {{moves::trades}}},                    // all_to_all; ragged: as its parts say
    {},                                                    // exchange: as its parts say
    {},                                                    // peers
    {},                                                    // split
    {},                                                    // duplicate
};
}  // namespace detail

[[nodiscard]] constexpr row const& row_of(collective kind) noexcept {
  return detail::rows_of_collectives[static_cast<std::size_t>(kind)];
}

/// The row of one call among `size` ranks.
struct geometry {
  call const& what;
  std::size_t element_bytes;
  int size;
  std::span<std::int64_t const> counts{};  ///< of a ragged all_gather

  [[nodiscard]] constexpr row const& of() const noexcept { return row_of(what.kind); }
  [[nodiscard]] constexpr bool gives(move const& it, int rank) const noexcept {
    return it.givers == side::all || rank == what.root;
  }
  [[nodiscard]] constexpr bool takes(move const& it, int rank) const noexcept {
    return it.takers == side::all || rank == what.root;
  }
  /// Elements of the view that is cut.
  [[nodiscard]] constexpr std::int64_t all() const noexcept {
    return of().into == cut::parts ? what.count * size : what.count;
  }
  [[nodiscard]] constexpr std::int64_t owned_count(int rank) const noexcept {
    if (!counts.empty()) return counts[static_cast<std::size_t>(rank)];
    if (of().into == cut::lines) return slice_of(what.count, element_bytes, rank, size).count;
    return of().into == cut::parts ? what.count : what.count / size;
  }
  /// The most that a rank owns.
  [[nodiscard]] constexpr std::int64_t largest() const noexcept {
    return counts.empty() ? owned_count(0) : *std::max_element(counts.begin(), counts.end());
  }
  [[nodiscard]] constexpr interval owned(int rank) const noexcept {
    if (of().into == cut::lines) return slice_of(what.count, element_bytes, rank, size);
    if (counts.empty()) return {rank * owned_count(rank), owned_count(rank)};
    interval out{0, owned_count(rank)};
    for (int below = 0; below < rank; ++below) out.first += owned_count(below);
    return out;
  }
  /// What `giver` gives to `taker`, as elements of the giver's view; none if one of them has no side in the move.
  [[nodiscard]] constexpr interval given(move const& it, int giver, int taker) const noexcept {
    return gives(it, giver) && takes(it, taker) ? choose(it.given, giver, taker) : interval{};
  }
  /// Where it belongs, as elements of the taker's view.
  [[nodiscard]] constexpr interval taken(move const& it, int giver, int taker) const noexcept {
    return gives(it, giver) && takes(it, taker) ? choose(it.taken, giver, taker) : interval{};
  }
  /// Elements that `rank` gives to the others in all moves.
  [[nodiscard]] constexpr std::int64_t sent(int rank) const noexcept {
    auto const& moves = of();
    std::int64_t sum = 0;
    std::int64_t own = -1;  // divides, so once, and where it is needed
    for (std::size_t i = 0; i < moves.count; ++i) {
      auto const& it = moves.moves[i];
      if (!gives(it, rank)) continue;
      auto const others = it.takers == side::all ? size - 1 : rank == what.root ? 0 : 1;
      if (it.given == piece::whole) {
        sum += what.count * others;
        continue;
      }
      if (own < 0) own = owned_count(rank);
      if (it.given == piece::of_giver)
        sum += own * others;
      else if (moves.into == cut::equal)
        sum += own * (size - 1);
      else
        sum += all() - own;
    }
    return sum;
  }

 private:
  [[nodiscard]] constexpr interval choose(piece which, int giver, int taker) const noexcept {
    return which == piece::whole ? interval{0, what.count} : owned(which == piece::of_giver ? giver : taker);
  }
};

}  // namespace trireme::comm
