#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/core/assertion.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// Routing of rows to experts: the choice of experts for each row, and the combination of the experts' results.
///
/// Numerics in the accumulate type; a row's result does not depend on the other rows. Sums over a row's experts are in
///          the order of its choices, most probable first.
/// Errors   assertion_error (light) if the sizes do not fit.
struct host_routing {
  template <class T>
  using view = tensor_view<T, host>;
  template <class T>
  using sums = tensor_view<accumulate_t<std::remove_const_t<T>>, host>;

  /// Each row chooses the most probable experts; of equal ones, those with lower numbers. The weights of a row's
  /// choices are their probabilities divided by the sum of these; with a single choice, its probability.
  /// Shapes   logits, probabilities (M, E); chosen, weights (M, K), K <= E.
  template <class T>
  static void route(sums<T> probabilities, view<std::int32_t> chosen, sums<T> weights, view<T> logits) {
    using A = accumulate_t<std::remove_const_t<T>>;
    auto const experts = logits.extent(1);
    auto const choices = chosen.extent(1);
    detail::same_size("route", probabilities.size(), logits.size());
    detail::same_size("route", chosen.size(), weights.size());
    detail::same_size("route", chosen.size() * experts, logits.size() * choices);
    expects(assertion_level::light, choices <= experts, [&] {
      return text("trireme::ops::route: ", how_many(choices, "choice"), " of ", how_many(experts, "expert"));
    });
    for (std::int64_t row = 0; row < logits.extent(0); ++row) {
      auto const* const from = raw(logits) + row * experts;
      auto* const p = raw(probabilities) + row * experts;
      A peak = static_cast<A>(from[0]);
      for (std::int64_t e = 1; e < experts; ++e) peak = std::max(peak, static_cast<A>(from[e]));
      A mass = 0;
      for (std::int64_t e = 0; e < experts; ++e) mass += p[e] = std::exp(static_cast<A>(from[e]) - peak);
      for (std::int64_t e = 0; e < experts; ++e) p[e] /= mass;
      choose(p, experts, raw(chosen) + row * choices, raw(weights) + row * choices, choices);
    }
  }

  /// The gradient of route by the logits, from those of the weights and of the probabilities (`slopes`, or empty).
  template <class T>
  static void route_backward(view<T> dlogits, sums<T> dweights, sums<T> probabilities, view<std::int32_t const> chosen,
                             sums<T> weights, sums<T> slopes) {
    using A = accumulate_t<T>;
    auto const experts = dlogits.extent(1);
    auto const choices = chosen.extent(1);
    detail::same_size("route_backward", probabilities.size(), dlogits.size());
    detail::same_size("route_backward", chosen.size(), weights.size());
    detail::same_size("route_backward", chosen.size(), dweights.size());
    thread_local std::vector<A> slope;
    slope.resize(static_cast<std::size_t>(experts));
    for (std::int64_t row = 0; row < dlogits.extent(0); ++row) {
      auto const* const p = raw(probabilities) + row * experts;
      auto const* const which = raw(chosen) + row * choices;
      auto const* const w = raw(weights) + row * choices;
      auto const* const dw = raw(dweights) + row * choices;
      for (std::int64_t e = 0; e < experts; ++e)
        slope[static_cast<std::size_t>(e)] = slopes.empty() ? A{0} : raw(slopes)[row * experts + e];
      if (choices == 1) {
        slope[static_cast<std::size_t>(which[0])] += dw[0];
      } else {
        A mean = 0;
        A mass = 0;
        for (std::int64_t j = 0; j < choices; ++j) {
          mean += w[j] * dw[j];
          mass += p[which[j]];
        }
        for (std::int64_t j = 0; j < choices; ++j) slope[static_cast<std::size_t>(which[j])] += (dw[j] - mean) / mass;
      }
      A mean = 0;
      for (std::int64_t e = 0; e < experts; ++e) mean += p[e] * slope[static_cast<std::size_t>(e)];
      for (std::int64_t e = 0; e < experts; ++e)
        raw(dlogits)[row * experts + e] = static_cast<T>(p[e] * (slope[static_cast<std::size_t>(e)] - mean));
    }
  }

  /// Each row chooses the experts with the largest scores + bias, in the groups that `how` permits; the scores are
  /// sigmoids of the logits. The weights of its choices are their scores divided by the sum of these, times how.scale.
  /// Shapes   logits, scores (M, E); chosen, weights (M, K); bias (E).
  template <class T>
  static void score(sums<T> scores, view<std::int32_t> chosen, sums<T> weights, view<T> logits, detail::input<T> bias,
                    scored_choice const& how) {
    using A = accumulate_t<std::remove_const_t<T>>;
    auto const experts = logits.extent(1), choices = chosen.extent(1);
    detail::same_size("score", scores.size(), logits.size());
    detail::same_size("score", chosen.size(), weights.size());
    detail::same_size("score", bias.size(), experts);
    expects(assertion_level::light,
            experts % how.groups == 0 && how.chosen_groups <= how.groups &&
                choices <= how.chosen_groups * (experts / how.groups),
            [&] {
              return text("trireme::ops::score: ", how_many(choices, "choice"), " of ", how.chosen_groups, " of ",
                          how.groups, " groups of ", how_many(experts, "expert"));
            });
    thread_local std::vector<A> biased;
    biased.resize(static_cast<std::size_t>(experts));
    for (std::int64_t row = 0; row < logits.extent(0); ++row) {
      auto* const s = raw(scores) + row * experts;
      auto* const which = raw(chosen) + row * choices;
      auto* const w = raw(weights) + row * choices;
      for (std::int64_t e = 0; e < experts; ++e) {
        s[e] = 1 / (1 + std::exp(-static_cast<A>(raw(logits)[row * experts + e])));
        biased[static_cast<std::size_t>(e)] = s[e] + static_cast<A>(raw(bias)[e]);
      }
      leave_groups(biased.data(), experts, how);
      pick(biased.data(), experts, which, choices);
      A mass = 0;
      for (std::int64_t j = 0; j < choices; ++j) mass += s[which[j]];
      for (std::int64_t j = 0; j < choices; ++j) w[j] = static_cast<A>(how.scale) * s[which[j]] / mass;
    }
  }
  /// The gradient of score by the logits, from that of the weights.
  template <class T>
  static void score_backward(view<T> dlogits, sums<T> dweights, sums<T> scores, view<std::int32_t const> chosen,
                             sums<T> weights, scored_choice const& how) {
    using A = accumulate_t<T>;
    auto const experts = dlogits.extent(1), choices = chosen.extent(1);
    detail::same_size("score_backward", scores.size(), dlogits.size());
    detail::same_size("score_backward", chosen.size(), weights.size());
    detail::same_size("score_backward", chosen.size(), dweights.size());
    for (std::int64_t row = 0; row < dlogits.extent(0); ++row) {
      auto const* const s = raw(scores) + row * experts;
      auto const* const which = raw(chosen) + row * choices;
      A mean = 0, mass = 0;
      for (std::int64_t j = 0; j < choices; ++j) {
        mean += raw(weights)[row * choices + j] * raw(dweights)[row * choices + j];
        mass += s[which[j]];
      }
      for (std::int64_t e = 0; e < experts; ++e) raw(dlogits)[row * experts + e] = T{};
      for (std::int64_t j = 0; j < choices; ++j) {
        auto const slope = (static_cast<A>(how.scale) * raw(dweights)[row * choices + j] - mean) / mass;
        auto const one = s[which[j]];
        raw(dlogits)[row * experts + which[j]] = static_cast<T>(slope * one * (1 - one));
      }
    }
  }
  /// Adds to excess[e] how much more often than the mean expert e is chosen, times the number of experts: integers,
  /// whose sums over rows and ranks are exact up to 2^24 in float.
  /// Shapes   excess (E); chosen (M, K).
  template <class A>
  static void add_excess(view<A> excess, view<std::int32_t const> chosen) {
    auto const experts = excess.size();
    for (auto const expert : chosen.span()) raw(excess)[expert] += static_cast<A>(experts);
    for (std::int64_t e = 0; e < experts; ++e) raw(excess)[e] -= static_cast<A>(chosen.size());
  }

  /// The imbalance of a sample's choices: the sum over samples of E sum_e f_e P_e, where f_e is the share of choices
  /// that expert e gets, and P_e its mean probability; 1 per sample if all experts get the same. `slopes` (or empty)
  /// gets `scale` times its gradient by the probabilities, with f taken as constant.
  /// Shapes   probabilities, slopes (M, E); chosen (M, K); each sample has `rows` of the rows.
  template <class A>
  static loss_sum imbalance(view<A> slopes, detail::input<A> probabilities, view<std::int32_t const> chosen,
                            std::int64_t rows, double scale) {
    auto const experts = probabilities.extent(1);
    auto const choices = chosen.extent(1);
    thread_local std::vector<double> load;
    load.resize(static_cast<std::size_t>(experts));
    double sum = 0;
    for (std::int64_t first = 0; first < probabilities.extent(0); first += rows) {
      for (auto& each : load) each = 0;
      auto const* const which = raw(chosen) + first * choices;
      for (std::int64_t i = 0; i < rows * choices; ++i) load[static_cast<std::size_t>(which[i])] += 1;
      for (auto& each : load) each *= static_cast<double>(experts) / static_cast<double>(rows * rows * choices);
      for (std::int64_t i = first * experts; i < (first + rows) * experts; ++i) {
        auto const slope = load[static_cast<std::size_t>(i % experts)];
        sum += slope * static_cast<double>(raw(probabilities)[i]);
        if (!slopes.empty()) raw(slopes)[i] = static_cast<A>(scale * slope);
      }
    }
    return {sum};
  }

  /// Sorts all choices by expert, those of one expert in the order of rows: places[i] is the index of choice i, counts
  /// the number of choices of each expert.
  static void sort_by_expert(view<std::int32_t> positions, std::span<std::int64_t> counts,
                             view<std::int32_t const> chosen) {
    detail::same_size("sort_by_expert", positions.size(), chosen.size());
    for (auto& each : counts) each = 0;
    for (auto const expert : chosen.span()) ++counts[static_cast<std::size_t>(expert)];
    thread_local std::vector<std::int64_t> next;
    next.assign(counts.size(), 0);
    for (std::size_t e = 1; e < counts.size(); ++e) next[e] = next[e - 1] + counts[e - 1];
    for (std::int64_t i = 0; i < chosen.size(); ++i)
      raw(positions)[i] = static_cast<std::int32_t>(next[static_cast<std::size_t>(raw(chosen)[i])]++);
  }

  /// to[places[m, k]] = from[m]: copies each row to the places of its choices.
  /// Shapes   from (M, C); places (M, K); to (M * K, C).
  template <class T>
  static void dispatch(view<T> to, detail::input<T> from, view<std::int32_t const> positions) {
    detail::same_size("dispatch", to.extent(0), positions.size());
    auto const channels = to.extent(1);
    auto const choices = positions.extent(1);
    for (std::int64_t i = 0; i < positions.size(); ++i) {
      auto const* const x = raw(from) + i / choices * channels;
      auto* const y = raw(to) + raw(positions)[i] * channels;
      for (std::int64_t c = 0; c < channels; ++c) y[c] = x[c];
    }
  }
  /// to[m] = sum_k weights[m, k] from[places[m, k]]; without weights they are 1.
  /// Shapes   those of dispatch with from and to exchanged; weights (M, K), or empty.
  template <class T>
  static void combine(view<T> to, detail::input<T> from, view<std::int32_t const> positions, sums<T> weights) {
    using A = accumulate_t<T>;
    detail::same_size("combine", from.extent(0), positions.size());
    auto const channels = to.extent(1);
    auto const choices = positions.extent(1);
    thread_local std::vector<A> sum;
    sum.resize(static_cast<std::size_t>(channels));
    for (std::int64_t row = 0; row < to.extent(0); ++row) {
      for (auto& each : sum) each = 0;
      for (auto i = row * choices; i < (row + 1) * choices; ++i) {
        auto const weight = weights.empty() ? A{1} : raw(weights)[i];
        auto const* const x = raw(from) + raw(positions)[i] * channels;
        for (std::int64_t c = 0; c < channels; ++c) sum[static_cast<std::size_t>(c)] += weight * static_cast<A>(x[c]);
      }
      auto* const y = raw(to) + row * channels;
      for (std::int64_t c = 0; c < channels; ++c) y[c] = static_cast<T>(sum[static_cast<std::size_t>(c)]);
    }
  }
  /// The gradients of combine: dfrom[places[m, k]] = weights[m, k] dto[m]; dweights[m, k] = dto[m] . from[places[m,
  /// k]].
  template <class T>
  static void combine_backward(view<T> dfrom, sums<T> dweights, detail::input<T> dto, detail::input<T> from,
                               view<std::int32_t const> positions, sums<T> weights) {
    using A = accumulate_t<T>;
    detail::same_size("combine_backward", from.size(), dfrom.size());
    detail::same_size("combine_backward", weights.size(), positions.size());
    detail::same_size("combine_backward", dweights.size(), positions.size());
    auto const channels = dfrom.extent(1);
    auto const choices = positions.extent(1);
    for (std::int64_t i = 0; i < positions.size(); ++i) {
      auto const* const dy = raw(dto) + i / choices * channels;
      auto const* const x = raw(from) + raw(positions)[i] * channels;
      auto* const dx = raw(dfrom) + raw(positions)[i] * channels;
      A dot = 0;
      for (std::int64_t c = 0; c < channels; ++c) {
        dot += static_cast<A>(dy[c]) * static_cast<A>(x[c]);
        dx[c] = static_cast<T>(raw(weights)[i] * static_cast<A>(dy[c]));
      }
      raw(dweights)[i] = dot;
    }
  }

 private:
  // Probabilities that are NaN are used as they are: the loss is then not finite, and the step is skipped.
  template <class A>
  static void choose(A const* p, std::int64_t experts, std::int32_t* chosen, A* weights, std::int64_t choices) {
    pick(p, experts, chosen, choices);
    A mass = 0;
    for (std::int64_t j = 0; j < choices; ++j) mass += weights[j] = p[chosen[j]];
    if (choices == 1) return;
    for (std::int64_t j = 0; j < choices; ++j) weights[j] /= mass;
  }
  // The largest of p, in descending order; of equal ones those with lower numbers.
  template <class A>
  static void pick(A const* p, std::int64_t n, std::int32_t* picked, std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      std::int64_t best = -1;
      for (std::int64_t e = 0; e < n; ++e) {
        bool const free = std::find(picked, picked + j, e) == picked + j;
        if (free && (best < 0 || p[e] > p[best])) best = e;
      }
      picked[j] = static_cast<std::int32_t>(best);
    }
  }
  // Sets the scores of experts in other groups to the lowest value.
  template <class A>
  static void leave_groups(A* biased, std::int64_t experts, scored_choice const& how) {
    if (how.chosen_groups == how.groups) return;
    auto const each = experts / how.groups;
    thread_local std::vector<A> best;
    thread_local std::vector<std::int32_t> groups;
    best.resize(static_cast<std::size_t>(how.groups));
    groups.resize(static_cast<std::size_t>(how.chosen_groups));
    for (std::int64_t g = 0; g < how.groups; ++g) {
      std::int32_t two[2] = {};
      auto const count = std::min<std::int64_t>(2, each);
      pick(biased + g * each, each, two, count);
      auto& sum = best[static_cast<std::size_t>(g)];
      sum = biased[g * each + two[0]];
      if (count == 2) sum += biased[g * each + two[1]];
    }
    pick(best.data(), how.groups, groups.data(), how.chosen_groups);
    for (std::int64_t g = 0; g < how.groups; ++g) {
      if (std::find(groups.begin(), groups.end(), g) != groups.end()) continue;
      std::fill_n(biased + g * each, each, -std::numeric_limits<A>::infinity());
    }
  }
};

}  // namespace trireme::ops
