#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "trireme/ops/sets/dense.hpp"

namespace trireme::ops {

// The set of experts: rows choose experts and are sorted by them (nn::experts). M rows, E experts, K choices of a row.
//
//   route(probabilities, chosen, weights, logits)        the K most probable experts of each row; of equal ones those
//                                                        with lower numbers. Weights: probabilities over their sum
//   route_backward(dlogits, dweights, probabilities, chosen, weights, slopes)
//   score(scores, chosen, weights, logits, bias, choice)  the same by independent scores (sigmoids), in groups
//   score_backward(dlogits, dweights, scores, chosen, weights, choice)
//   add_excess(gradient, chosen)                         gradient (E) += rows of each expert less their mean
//   imbalance(slopes, probabilities, chosen, rows, weight) -> losses_in<Space>
//                                                        the balance loss, of no row; slopes get its gradient
//   sort_by_expert(positions, counts, chosen)            positions (M, K) of each choice among rows sorted by expert,
//                                                        stably; counts (E), in memory of this process
//   dispatch(to, from, positions)                        to[positions[m, k]] = from[m]
//   combine(to, from, positions, weights)                to[m] = the sum over k of weights[m, k] from[positions[m, k]]
//   copy_runs(to, from, runs)                            to[run.to + i] = from[run.from + i] for i < run.count
//   combine_backward(dfrom, dweights, dto, from, positions, weights)
//
// Shapes   logits, probabilities, scores (M, E); chosen, weights, positions (M, K); rows (M, C), sorted rows (M K, C).
// Numerics in the accumulate type; sums over a row's experts in the order of its choices.

namespace detail {

template <class K, class V, class Space>
concept routes = requires(typename V::y y, typename V::x x, typename V::sums s, typename V::numbers chosen,
                          typename V::tokens positions, typename V::gradient g, scored_choice const& choice,
                          std::span<std::int64_t> counts, std::span<element_run const> runs) {
  K::copy_runs(y, x, runs);
  K::route(s, chosen, s, y);
  K::route_backward(y, s, s, chosen, s, s);
  K::score(s, chosen, s, y, x, choice);
  K::score_backward(y, s, s, chosen, s, choice);
  K::add_excess(g, positions);
  { K::imbalance(s, s, positions, std::int64_t{}, 1.0) } -> std::same_as<losses_in<Space>>;
  K::sort_by_expert(chosen, counts, positions);
  K::dispatch(y, x, positions);
  K::combine(y, x, positions, s);
  K::combine_backward(y, s, x, x, positions, s);
};

}  // namespace detail

/// Whether a memory space has the kernels of nn::experts: those of routing, and of dense layers.
template <class Space, class Env>
concept experts_kernels = complete_kernels<Space> ||
    (dense_kernels<Space, Env>&& detail::routes<on<Space>, detail::set_views<Space, Env>, Space>);

}  // namespace trireme::ops
