#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace trireme::data::detail {

/// Pieces in bins: bin b holds pieces[begins[b]], ..., pieces[begins[b + 1] - 1].
struct filled_bins {
  std::vector<std::int64_t> pieces;
  std::vector<std::int64_t> begins{0};
};

/// Puts pieces into as few bins as it can: the largest piece first, each into the fullest bin that has room for it
/// [Ding et al., "Fewer truncations improve language modeling", 2024]. The result depends on the sizes alone.
///
/// @param sizes  each from 1 to capacity.
[[nodiscard]] inline filled_bins best_fit(std::span<std::int32_t const> sizes, std::int32_t capacity) {
  auto const most = static_cast<std::size_t>(capacity);
  std::vector<std::int64_t> order(sizes.size()), at(most + 1);  // by size, the largest first; equal ones as they come
  for (auto const size : sizes) ++at[most - static_cast<std::size_t>(size)];
  std::int64_t sum = 0;
  for (auto& each : at) {
    auto const count = each;
    each = sum;
    sum += count;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    order[static_cast<std::size_t>(at[most - static_cast<std::size_t>(sizes[i])]++)] = static_cast<std::int64_t>(i);
  }
  std::vector<std::int64_t> bin_of(sizes.size());
  std::map<std::int32_t, std::vector<std::int64_t>> with_room;  // bins by what is left in them
  std::int64_t bins = 0;
  for (auto const piece : order) {
    auto const size = sizes[static_cast<std::size_t>(piece)];
    auto const found = with_room.lower_bound(size);
    auto left = capacity;
    auto bin = bins;
    if (found == with_room.end()) {
      ++bins;
    } else {
      left = found->first;
      bin = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) with_room.erase(found);
    }
    bin_of[static_cast<std::size_t>(piece)] = bin;
    if (left > size) with_room[left - size].push_back(bin);
  }
  filled_bins out;
  out.begins.assign(static_cast<std::size_t>(bins) + 1, 0);
  for (auto const bin : bin_of) ++out.begins[static_cast<std::size_t>(bin) + 1];
  for (std::size_t b = 1; b < out.begins.size(); ++b) out.begins[b] += out.begins[b - 1];
  auto next = out.begins;
  out.pieces.resize(sizes.size());
  for (auto const piece : order) {
    auto const bin = static_cast<std::size_t>(bin_of[static_cast<std::size_t>(piece)]);
    out.pieces[static_cast<std::size_t>(next[bin]++)] = piece;
  }
  return out;
}

}  // namespace trireme::data::detail
