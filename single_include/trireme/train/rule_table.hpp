// Trireme 0.1.0: trireme/train/rule_table.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 631a492744b107cd50bcac536b1df2e5d36e2218ccf0d35b9edf0dc9ef8fc89a
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
/// axis of your own adds its rules. The last one is fit()'s.
inline constexpr auto compatibility_rules =
    detail::rules::table(detail::rules::all_of<detail::rules::of_mesh_t<detail::rules::axes>,
                                               rule_list<detail::rules::shares_need_replicas>>::type{});

}  // namespace trireme
