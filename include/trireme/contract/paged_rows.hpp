#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme {

/// The rows of a pass that serves many sequences at once: each is one position of one sequence, and sequences may have
/// any number of rows. Layers that see other positions keep what later ones need in pages of `page` positions; which
/// pages a sequence has is said anew with each pass.
///
/// A sequence's rows of a pass are in the order of their positions, and all positions before them have been in earlier
/// passes, or are in this one. Its pages are those of positions 0..15, 16..31 and so on; sequences may share pages
/// whose positions all have had the same tokens.
struct paged_rows {
  static constexpr std::int64_t page = 16;

  struct place {
    std::int64_t position = 0;    ///< in its sequence
    std::int64_t first_page = 0;  ///< where the pages of its sequence begin, in `pages`
    friend bool operator==(place const&, place const&) = default;
  };

  std::span<place const> rows{};
  std::span<std::int32_t const> pages{};    ///< numbers of pages, below pages_in_all
  std::int64_t pages_in_all = 0;            ///< that each layer has
  std::span<std::int64_t const> outputs{};  ///< the rows whose outputs are wanted

  /// The number of pages of a sequence with so many positions.
  [[nodiscard]] static constexpr std::int64_t pages_for(std::int64_t positions) noexcept {
    return (positions + page - 1) / page;
  }
  [[nodiscard]] std::int64_t count() const noexcept { return static_cast<std::int64_t>(rows.size()); }
  [[nodiscard]] place const& row(std::int64_t i) const noexcept { return rows[static_cast<std::size_t>(i)]; }
  /// The position behind the last one of all rows.
  [[nodiscard]] std::int64_t end() const noexcept {
    std::int64_t end = 0;
    for (auto const& each : rows) end = std::max(end, each.position + 1);
    return end;
  }
  /// The page of a row's sequence that has this position.
  [[nodiscard]] std::int64_t page_of(place const& at, std::int64_t position) const noexcept {
    return pages[static_cast<std::size_t>(at.first_page + position / page)];
  }
  /// Calls f(first row, rows, position of the first) for rows whose positions follow each other.
  template <class F>
  void for_each_run(F&& f) const {
    for (std::int64_t first = 0; first < count();) {
      auto end = first + 1;
      while (end < count() && row(end).position == row(end - 1).position + 1) ++end;
      f(first, end - first, row(first).position);
      first = end;
    }
  }
};

}  // namespace trireme
