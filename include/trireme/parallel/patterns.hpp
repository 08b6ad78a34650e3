#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/pattern.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/parallel/distinct_lists.hpp"

namespace trireme::parallel {

/// Throws config_error on every rank if a pattern of a description matches no name on any rank.
///
/// Ranks    collective if the description has patterns: ranks may have different names, but equal patterns.
/// Bytes    one all_reduce of a number a pattern. Names are sent only for the error, in three more collectives: names
///          that several ranks have, once.
/// @param names  of the parameters of this rank.
template <class Comm, class Description>
void expect_patterns([[maybe_unused]] Comm& world, [[maybe_unused]] Description const& description,
                     [[maybe_unused]] std::vector<std::string> const& names) {
  if constexpr (has_patterns<Description>) {
    std::vector<name_pattern> all;
    std::vector<std::int64_t> found;
    description.for_each_pattern([&](name_pattern const& each) {
      all.push_back(each);
      trireme::detail::for_each_word(each.patterns, [&](std::string_view one) {
        found.push_back(
            std::any_of(names.begin(), names.end(), [&](auto const& name) { return each.fits(one, name); }));
      });
    });
    if (found.empty()) return;
    world.all_reduce(tensor_view<std::int64_t>(found), reduction::max{});
    if (std::find(found.begin(), found.end(), 0) == found.end()) return;
    word_list own;  // each name as its length and its characters
    for (auto const& name : names) {
      own.push_back(name.size());
      append_letters(own, name);
    }
    std::vector<std::string> everywhere;
    for (auto const& list : distinct_lists(world, std::span<word_list const>(&own, 1))) {
      for (auto const* at = list.words.data(); at != list.words.data() + list.words.size();) {
        auto const letters = static_cast<std::size_t>(*at++);
        everywhere.push_back(letters_at(at, letters));
      }
    }
    for (auto const& each : all) expect_matches(each, everywhere);
  }
}

}  // namespace trireme::parallel
