#pragma once

#include <concepts>
#include <cstdint>

#include "trireme/ops/sets/dense.hpp"

namespace trireme::ops {

// The set of parts: a cross entropy whose classes are distributed over the ranks of a tensor group, in three calls with
// a collective after each of the first two (parallel::tensor).
//
//   row_peaks(logits, peaks)
//       peaks[i] = the largest logit of row i here; the group's maximum follows
//   row_masses(logits, targets, part, peaks, masses, chosen, terms)
//       masses[i] = the sum of exp(logit - peaks[i]) here; chosen[i] = the target's logit if it is here, else 0, with
//       smoothing plus the smoothed part of the logits here; the group's sums follow
//   cross_entropy_part(logits, targets, part, peaks, masses, chosen, weight, gradient, terms) -> losses_in<Space>
//
// Shapes   logits (n, classes here), targets, peaks, masses, chosen (n). All three calls get the same terms.

namespace detail {

template <class K, class V, class Space>
concept takes_parts = requires(typename V::y y, typename V::sums s, typename V::tokens targets, table_range part,
                               cross_entropy_terms const& terms) {
  K::row_peaks(y, s);
  K::row_masses(y, targets, part, s, s, s, terms);
  { K::cross_entropy_part(y, targets, part, s, s, s, 1.0, true, terms) } -> std::same_as<losses_in<Space>>;
};

}  // namespace detail

/// Whether a memory space has the kernels that layers need in a tensor group, besides those of dense layers.
template <class Space, class Env>
concept parts_kernels = complete_kernels<Space> ||
    (dense_kernels<Space, Env>&& detail::takes_parts<on<Space>, detail::set_views<Space, Env>, Space>);

}  // namespace trireme::ops
