#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "trireme/core/dialect.hpp"

namespace trireme::comm {

enum class collective : std::uint8_t {
  barrier,
  all_reduce,
  reduce_scatter,
  reduce,
  all_gather,
  gather,
  scatter,
  broadcast,
  all_to_all,
  exchange,
  peers,
  split,
  duplicate
};

/// Which ranks take part on one side of a move.
enum class side : std::uint8_t { all, root };
/// Which elements of a view: all `count` of them, or those that the giver or the taker owns.
enum class piece : std::uint8_t { whole, of_giver, of_taker };
/// How a view is cut into the slices that ranks own: at cache lines, into equal slices (ragged: by counts), or `count`
/// a rank.
enum class cut : std::uint8_t { none, lines, equal, parts };

/// Each giver sends a slice of its view to each taker, also to itself.
struct move {
  side givers = side::all;
  side takers = side::all;
  piece given = piece::whole;  ///< of the giver's `from`
  piece taken = piece::whole;  ///< of the taker's `to`
  bool folds = false;          ///< the elements of all givers are combined, in rank order
  bool passed_on = false;      ///< counted as a chain: from the root, each rank sends all of it to the next
};

/// A collective: its name, and its moves, in this order. No moves if it only synchronises, or if its parts give them
/// (exchange). Byte counts, throttling, records, plans and all engines follow these rows.
struct row {
  std::string_view name;
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
inline constexpr move tells{side::root, side::all, piece::whole, piece::whole, false, true};
inline constexpr move trades{side::all, side::all, piece::of_taker, piece::of_giver};
}  // namespace moves

/// In the order of `collective`.
inline constexpr row collective_rows[] = {
    {"barrier"},
    {"all_reduce", cut::lines, 2, {{moves::scatters, moves::gathers}}},
    {"reduce_scatter", cut::equal, 1, {{moves::scatters}}},
    {"reduce", cut::lines, 1, {{moves::reduces}}},
    {"all_gather", cut::equal, 1, {{moves::gathers}}},
    {"gather", cut::parts, 1, {{moves::collects}}},
    {"scatter", cut::parts, 1, {{moves::deals}}},
    {"broadcast", cut::lines, 1, {{moves::tells}}},
    {"all_to_all", cut::equal, 1, {{moves::trades}}},  // ragged: by its parts
    {"exchange"},                                      // by its parts
    {"peers"},
    {"split"},
    {"duplicate"},
};
}  // namespace detail

inline constexpr int collective_kinds = static_cast<int>(std::size(detail::collective_rows));

[[nodiscard]] constexpr row const& row_of(collective kind) noexcept {
  return detail::collective_rows[static_cast<std::size_t>(kind)];
}
[[nodiscard]] constexpr std::string_view name_of(collective kind) noexcept { return row_of(kind).name; }

static_assert(row_of(collective::duplicate).name == "duplicate", "each collective has a row");

}  // namespace trireme::comm
