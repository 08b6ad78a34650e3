#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/arithmetic.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/parallel/broadcast.hpp"

namespace trireme::parallel {

/// A value that must be equal on every rank, as text. A text of several lines is a list.
struct rank_value {
  std::string_view what;
  std::string value;
  std::string_view remedy = {};  ///< the end of its error message, if it differs from the default
};

namespace detail {

/// Line `number` of a text, or "nothing" after the last one.
[[nodiscard]] inline std::string_view line_of(std::string_view all, std::size_t number) {
  for (; number > 0 && !all.empty(); --number) {
    auto const end = all.find('\n');
    all = end == std::string_view::npos ? std::string_view() : all.substr(end + 1);
  }
  return all.empty() ? "nothing" : all.substr(0, all.find('\n'));
}
/// The first lines in which two texts differ.
[[nodiscard]] inline std::pair<std::string_view, std::string_view> differing_lines(std::string_view a,
                                                                                   std::string_view b) {
  std::size_t number = 0;
  while (line_of(a, number) == line_of(b, number) && line_of(a, number) != "nothing") ++number;
  return {line_of(a, number), line_of(b, number)};
}

}  // namespace detail

/// The floating-point mode of this rank's processor: results have other bits in another mode.
[[nodiscard]] inline rank_value arithmetic_of_rank() {
  return {"the processor's arithmetic", to_string(arithmetic_mode::of_this_thread()),
          "set rounding and denormal numbers equally on every rank (fesetround, _MM_SET_FLUSH_ZERO_MODE, "
          "torch::set_flush_denormal, or a program linked with -ffast-math)"};
}

/// Throws config_error on every rank if an item differs between ranks; the error names it, two ranks and their values.
///
/// Bytes    one all_gather of a number an item; values are sent only if they differ.
/// Ranks    collective: the same number of items on every rank, in one order.
///
/// @param whose   the public name with which the error begins.
/// @param rank    the rank's number in the error: that in the whole world.
/// @param remedy  the end of the error, unless an item has its own.
template <class Comm>
void expect_same_on_all_ranks(Comm& world, std::string_view whose, int rank, std::span<rank_value const> items,
                              std::string_view remedy) {
  if (world.size() == 1) return;
  auto const ranks = static_cast<std::size_t>(world.size());
  auto const own = static_cast<std::size_t>(world.rank());
  auto const each = items.size() + 1;  // the last number is the rank's number in the error
  std::vector<std::uint64_t> table(each * ranks);
  for (std::size_t item = 0; item < items.size(); ++item) table[own * each + item] = hash_name(items[item].value);
  table[own * each + items.size()] = static_cast<std::uint64_t>(rank);
  world.all_gather(tensor_view<std::uint64_t>(table));
  for (std::size_t item = 0; item < items.size(); ++item) {
    for (std::size_t other = 1; other < ranks; ++other) {
      if (table[other * each + item] == table[item]) continue;
      auto const first = detail::value_of_rank(world, 0, items[item].value);
      auto const second = detail::value_of_rank(world, static_cast<int>(other), items[item].value);
      auto const [here, there] = detail::differing_lines(first, second);
      throw config_error(text(whose, ": ", items[item].what, " is ", here, " on rank ", table[items.size()], " but ",
                              there, " on rank ", table[other * each + items.size()], "; ",
                              items[item].remedy.empty() ? remedy : items[item].remedy));
    }
  }
}

}  // namespace trireme::parallel
