// Trireme 0.1.0: trireme/serve/pages.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: b950680602eda1aca37dfca841a35304bc32d79daffa5fe90feb8b5377fff67d
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/serve/pages.hpp
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace trireme::serve {

/// Which pages of keys and values are used, and which can be used again. A page whose 16 positions have been computed
/// is remembered by its tokens and the page before it: a sequence that begins with the same tokens takes it, also after
/// all that used it have ended, as long as no other sequence needed the memory.
///
/// Threads  one owner.
class page_list {
 public:
  using tokens = std::array<std::int32_t, static_cast<std::size_t>(paged_rows::page)>;

  /// A page of a sequence. `content` tells what all positions up to its end hold; 0: not full yet.
  struct page {
    std::int32_t number = 0;
    std::uint64_t content = 0;
  };

  explicit page_list(std::int64_t count) : pages_(static_cast<std::size_t>(count)) {
    for (std::size_t i = 0; i < pages_.size(); ++i)
      pages_[i].place = free_.insert(free_.end(), static_cast<std::int32_t>(i));
  }

  [[nodiscard]] std::int64_t count() const noexcept { return static_cast<std::int64_t>(pages_.size()); }
  [[nodiscard]] std::int64_t free() const noexcept { return static_cast<std::int64_t>(free_.size()); }
  [[nodiscard]] std::int64_t used() const noexcept { return count() - free(); }

  /// A page for other positions: of the free ones that whose content was used least recently.
  [[nodiscard]] std::optional<page> take() {
    if (free_.empty()) return std::nullopt;
    auto const number = free_.front();
    auto& own = of(number);
    forget(own);
    use(own);
    return page{number, 0};
  }
  /// The page with these tokens behind a page with content `before` (0: at a sequence's beginning), if there is one.
  [[nodiscard]] std::optional<page> find(std::uint64_t before, tokens const& what) {
    auto const found = known_.find({before, what});
    if (found == known_.end()) return std::nullopt;
    auto& own = of(found->second);
    use(own);
    return page{found->second, own.content};
  }
  /// Remembers what a page holds, now that all of its positions are computed.
  void fill(page& which, std::uint64_t before, tokens const& what) {
    auto const [found, is_new] = known_.try_emplace({before, what}, which.number);
    if (is_new) {
      auto& own = of(which.number);
      own.content = ++contents_;
      own.entry = found;
    }
    which.content = of(found->second).content;
  }
  void give_back(page const& which) {
    auto& own = of(which.number);
    if (--own.users > 0) return;
    // Pages without a content that can be found are taken first.
    own.place = free_.insert(own.content == 0 ? free_.begin() : free_.end(), which.number);
  }

 private:
  using entries = std::map<std::pair<std::uint64_t, tokens>, std::int32_t>;
  struct state {
    std::int64_t users = 0;
    std::uint64_t content = 0;
    entries::iterator entry{};
    std::list<std::int32_t>::iterator place{};  // among the free ones
  };

  [[nodiscard]] state& of(std::int32_t number) { return pages_[static_cast<std::size_t>(number)]; }
  void use(state& own) {
    if (own.users++ == 0) free_.erase(own.place);
  }
  void forget(state& own) {
    if (own.content != 0) known_.erase(own.entry);
    own.content = 0;
  }

  std::vector<state> pages_;
  std::list<std::int32_t> free_;
  entries known_;
  std::uint64_t contents_ = 0;
};

}  // namespace trireme::serve
