#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "trireme/contract/rule.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/compatibility.hpp"

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
