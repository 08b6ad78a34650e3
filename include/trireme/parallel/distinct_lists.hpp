#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/hash.hpp"

namespace trireme::parallel {

using word_list = std::vector<std::uint64_t>;

[[nodiscard]] inline std::uint64_t hash_words(word_list const& words) noexcept {
  auto sum = mix(words.size());
  for (auto const each : words) sum = mix(sum ^ each);
  return sum;
}

/// Appends the characters of a text to a list, eight in a word; the caller must store their number.
inline void append_letters(word_list& to, std::string_view letters) {
  auto const at = to.size();
  to.resize(at + (letters.size() + 7) / 8);
  if (!letters.empty()) std::memcpy(to.data() + at, letters.data(), letters.size());
}
/// Reads `count` characters back; afterwards `at` points after them.
[[nodiscard]] inline std::string letters_at(std::uint64_t const*& at, std::size_t count) {
  std::string letters(count, ' ');
  if (count > 0) std::memcpy(letters.data(), at, count);
  at += (count + 7) / 8;
  return letters;
}

/// A list that some ranks have.
struct distinct_list {
  int first = 0;  ///< rank that has it
  std::int64_t ranks = 0;
  word_list words;
};

/// Collective. The different lists of all ranks, each once, in the order of the ranks; empty ones are left out. Ranks
/// may have several, in different numbers.
///
/// Bytes    two words a list, and one all_reduce of the lists if there are several: a list that most ranks share is not
///          sent. Three collectives, whatever the number of ranks.
template <class Comm>
[[nodiscard]] std::vector<distinct_list> distinct_lists(Comm& world, std::span<word_list const> own) {
  auto most = static_cast<std::int64_t>(own.size());
  world.all_reduce(tensor_view<std::int64_t>(&most, shape{1}), reduction::max{});
  auto const each = 2 * static_cast<std::size_t>(most);
  std::vector<std::uint64_t> table(each * static_cast<std::size_t>(world.size()));  // a hash and a length
  auto const mine = table.begin() + static_cast<std::ptrdiff_t>(each * static_cast<std::size_t>(world.rank()));
  for (std::size_t i = 0; i < own.size(); ++i) {
    mine[static_cast<std::ptrdiff_t>(2 * i)] = hash_words(own[i]);
    mine[static_cast<std::ptrdiff_t>(2 * i + 1)] = own[i].size();
  }
  if (most > 0) world.all_gather(tensor_view<std::uint64_t>(table));
  std::vector<distinct_list> all;
  std::unordered_map<std::uint64_t, std::size_t> known;
  std::vector<std::size_t> of;  // the offset of each of them among all words
  std::size_t total = 0;
  bool everywhere = true;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (std::size_t i = 0; i < each; i += 2) {
      auto const* const at = table.data() + static_cast<std::size_t>(rank) * each + i;
      if (at[1] == 0) continue;
      auto const [found, is_new] = known.emplace(at[0], all.size());
      if (is_new) {
        all.push_back({rank, 0, word_list(at[1])});
        of.push_back(total);
        total += at[1];
      }
      ++all[found->second].ranks;
    }
  }
  for (auto const& one : all) everywhere = everywhere && one.ranks == world.size();
  for (auto const& words : own) {
    if (!words.empty()) all[known.at(hash_words(words))].words = words;
  }
  if (everywhere) return all;
  std::vector<std::uint64_t> sent(total);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].first != world.rank()) continue;
    std::copy(all[i].words.begin(), all[i].words.end(), sent.begin() + static_cast<std::ptrdiff_t>(of[i]));
  }
  world.all_reduce(tensor_view<std::uint64_t>(sent), reduction::sum{});
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const begin = sent.begin() + static_cast<std::ptrdiff_t>(of[i]);
    all[i].words.assign(begin, begin + static_cast<std::ptrdiff_t>(all[i].words.size()));
  }
  return all;
}

}  // namespace trireme::parallel
