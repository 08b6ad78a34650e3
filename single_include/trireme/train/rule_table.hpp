// Trireme 0.1.0: trireme/train/rule_table.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: ff1bd710de59edc79f6f26b98be83abb96e07c9d8639a07e534a64e6afe71c51
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/train/rule_table.hpp
#include <algorithm>
#include <array>
#include <cstddef>

namespace trireme {

namespace detail::rules {

/// The axes of this library that have rules, in the order of the table.
using axes =
    parallel::mesh<parallel::context, parallel::sequence, parallel::pipeline<>, parallel::tensor, parallel::expert>;

template <class... Rules>
constexpr std::array<compatibility_rule, sizeof...(Rules)> table(rule_list<Rules...>) {
  return {Rules::rule...};
}

}  // namespace detail::rules

/// All rules of this library on combinations, for documentation and tools. A trainer checks those of its own axes; an
/// axis of your own adds its rules.
inline constexpr auto compatibility_rules = detail::rules::table(detail::rules::of_mesh_t<detail::rules::axes>{});

}  // namespace trireme
