#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "trireme/core/dialect.hpp"

namespace trireme::comm {

/// The kinds of calls that a communicator counts and carries out.
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
enum class region : std::uint8_t { whole, of_sender, of_receiver };
/// How a view is cut into the slices that ranks own: at cache lines, into equal slices (ragged: by counts), or `count`
/// a rank.
enum class cut : std::uint8_t { none, lines, equal, per_rank };

/// Each giver sends a slice of its view to each taker, also to itself.
struct move {
  side senders = side::all;
  side receivers = side::all;
  region given = region::whole;  ///< of the giver's `from`
  region taken = region::whole;  ///< of the taker's `to`
  bool folds = false;            ///< the elements of all givers are combined, in rank order
  bool passed_on = false;        ///< counted as a chain: from the root, each rank sends all of it to the next
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
inline constexpr move reduce_scatters{side::all, side::all, region::of_receiver, region::of_receiver, true};
inline constexpr move all_gathers{side::all, side::all, region::of_sender, region::of_sender};
inline constexpr move reduces{side::all, side::root, region::whole, region::whole, true};
inline constexpr move gathers{side::all, side::root, region::whole, region::of_sender};
inline constexpr move scatters{side::root, side::all, region::of_receiver, region::whole};
inline constexpr move broadcasts{side::root, side::all, region::whole, region::whole, false, true};
inline constexpr move exchanges{side::all, side::all, region::of_receiver, region::of_sender};
}  // namespace moves

/// In the order of `collective`.
inline constexpr row collective_rows[] = {
    {"barrier"},
    {"all_reduce", cut::lines, 2, {{moves::reduce_scatters, moves::all_gathers}}},
    {"reduce_scatter", cut::equal, 1, {{moves::reduce_scatters}}},
    {"reduce", cut::lines, 1, {{moves::reduces}}},
    {"all_gather", cut::equal, 1, {{moves::all_gathers}}},
    {"gather", cut::per_rank, 1, {{moves::gathers}}},
    {"scatter", cut::per_rank, 1, {{moves::scatters}}},
    {"broadcast", cut::lines, 1, {{moves::broadcasts}}},
    {"all_to_all", cut::equal, 1, {{moves::exchanges}}},  // ragged: by its parts
    {"exchange"},                                         // by its parts
    {"peers"},
    {"split"},
    {"duplicate"},
};
}  // namespace detail

/// The number of them.
inline constexpr int collective_kinds = static_cast<int>(std::size(detail::collective_rows));

/// What is known of a kind before it is called: its name and geometry.
[[nodiscard]] constexpr row const& row_of(collective kind) noexcept {
  return detail::collective_rows[static_cast<std::size_t>(kind)];
}
[[nodiscard]] constexpr std::string_view name_of(collective kind) noexcept { return row_of(kind).name; }

static_assert(row_of(collective::duplicate).name == "duplicate", "each collective has a row");

}  // namespace trireme::comm
