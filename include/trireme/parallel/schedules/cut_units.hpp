#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/parallel/schedules/step.hpp"

namespace trireme::schedule {

/// Where a model's units are cut: part q has units [cuts[q], cuts[q + 1]).
using unit_cuts = std::vector<std::int64_t>;

namespace detail {

inline void expect_enough_units(std::int64_t units, int stages, int chunks) {
  if (stages >= 1 && chunks >= 1 && units >= std::int64_t{stages} * chunks) return;
  throw config_error(text("trireme::schedule::cut_units: ", how_many(stages, "stage"), " of ",
                          how_many(chunks, "chunk"), agreeing(stages, " needs", " need"), " at least ",
                          how_many(std::int64_t{stages} * chunks, "unit"), ", but the model has ", units,
                          "; use fewer stages, or a model of more layers"));
}

/// The cost of the first u units, for each u.
[[nodiscard]] inline std::vector<double> sums_of(std::span<double const> costs) {
  std::vector<double> sums{0};
  for (std::size_t u = 0; u < costs.size(); ++u) {
    if (!(costs[u] >= 0)) {
      throw config_error(
          text("trireme::schedule::cut_units: unit ", u, " costs ", costs[u], "; costs must be at least 0"));
    }
    sums.push_back(sums.back() + costs[u]);
  }
  return sums;
}

/// The best division of units into parts: with the smallest cost of the largest part; or, if `limit` is given, with the
/// smallest sum of squares of parts, none of which is larger than that. Exact, by dynamic programming.
[[nodiscard]] inline unit_cuts best_cuts(std::vector<double> const& sums, std::size_t parts, double const* limit,
                                         double& price) {
  auto const units = sums.size() - 1;
  auto const none = std::numeric_limits<double>::infinity();
  std::vector<double> prices(units + 1, none);  // of the first u units in as many parts as seen so far
  std::vector<std::vector<std::int64_t>> from(parts, std::vector<std::int64_t>(units + 1, 0));
  prices[0] = 0;
  for (std::size_t virtual_stage = 0; virtual_stage < parts; ++virtual_stage) {
    std::vector<double> longer(units + 1, none);
    for (std::size_t end = virtual_stage + 1; end <= units; ++end) {
      for (std::size_t begin = virtual_stage; begin < end; ++begin) {
        double const cost = sums[end] - sums[begin];
        if (limit != nullptr && cost > *limit) continue;
        double const whole = limit != nullptr       ? prices[begin] + cost * cost
                             : cost > prices[begin] ? cost
                                                    : prices[begin];
        if (whole >= longer[end]) continue;
        longer[end] = whole;
        from[virtual_stage][end] = static_cast<std::int64_t>(begin);
      }
    }
    prices = longer;
  }
  price = prices[units];
  unit_cuts cuts(parts + 1, static_cast<std::int64_t>(units));
  for (auto virtual_stage = parts; virtual_stage-- > 0;)
    cuts[virtual_stage] = from[virtual_stage][static_cast<std::size_t>(cuts[virtual_stage + 1])];
  return cuts;
}

/// How uneven cuts are, the most important number first: the cost of the largest stage, and squares of stages and of
/// parts.
struct unevenness {
  double most = 0, stages = 0, parts = 0;

  [[nodiscard]] bool much_less_than(unevenness const& other) const noexcept {
    double const own[] = {most, stages, parts};
    double const theirs[] = {other.most, other.stages, other.parts};
    for (int i = 0; i < 3; ++i) {
      double const rounding = 1e-9 * theirs[i];
      if (own[i] < theirs[i] - rounding) return true;
      if (own[i] > theirs[i] + rounding) return false;
    }
    return false;
  }
};

[[nodiscard]] inline unevenness unevenness_of(std::vector<double> const& sums, unit_cuts const& cuts,
                                              stage_map const& where) {
  unevenness found;
  for (int stage = 0; stage < where.stages; ++stage) {
    double cost = 0;
    for (int chunk = 0; chunk < where.chunks; ++chunk) {
      auto const* const cut = cuts.data() + where.virtual_stage(stage, chunk);
      double const virtual_stage = sums[static_cast<std::size_t>(cut[1])] - sums[static_cast<std::size_t>(cut[0])];
      cost += virtual_stage;
      found.parts += virtual_stage * virtual_stage;
    }
    found.most = cost > found.most ? cost : found.most;
    found.stages += cost * cost;
  }
  return found;
}

}  // namespace detail

/// Divides a model into stages * chunks parts of consecutive units: the cost of the largest part is as small as
/// possible, and among such divisions the parts are as even as possible. A part has at least one unit.
///
/// Errors  config_error if there are fewer units than parts, or a cost is not a number >= 0.
[[nodiscard]] inline unit_cuts cut_units(std::span<double const> costs, int stages, int chunks = 1) {
  auto const parts = static_cast<std::size_t>(stages) * static_cast<std::size_t>(chunks);
  detail::expect_enough_units(static_cast<std::int64_t>(costs.size()), stages, chunks);
  auto const sums = detail::sums_of(costs);
  double largest = 0;
  static_cast<void>(detail::best_cuts(sums, parts, nullptr, largest));
  double squares = 0;
  return detail::best_cuts(sums, parts, &largest, squares);
}

/// The same, for stages of several parts: then units are moved, one at a time, over the ends of parts as long as that
/// makes the largest stage cheaper, or stages or parts more even.
[[nodiscard]] inline unit_cuts cut_units(std::span<double const> costs, stage_map const& where) {
  auto cuts = cut_units(costs, where.stages, where.virtual_stages() / where.stages);
  if (where.chunks == 1) return cuts;
  auto const sums = detail::sums_of(costs);
  auto best = detail::unevenness_of(sums, cuts, where);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t q = 1; q + 1 < cuts.size(); ++q) {
      for (std::int64_t const to : {cuts[q] - 1, cuts[q] + 1}) {
        if (to <= cuts[q - 1] || to >= cuts[q + 1]) continue;
        auto const before = std::exchange(cuts[q], to);
        auto const now = detail::unevenness_of(sums, cuts, where);
        if (now.much_less_than(best)) {
          best = now;
          moved = true;
        } else {
          cuts[q] = before;
        }
      }
    }
  }
  return cuts;
}

/// Cuts given by the caller: the first unit of each part except the first.
///
/// Errors  config_error if there are not stages * chunks - 1 of them, or they do not increase within the model.
[[nodiscard]] inline unit_cuts cut_units(std::int64_t units, std::span<std::int64_t const> given, int stages,
                                         int chunks = 1) {
  detail::expect_enough_units(units, stages, chunks);
  auto const parts = std::int64_t{stages} * chunks;
  if (static_cast<std::int64_t>(given.size()) != parts - 1) {
    throw config_error(text("trireme::schedule::cut_units: ", how_many(stages, "stage"), " of ",
                            how_many(chunks, "chunk"), agreeing(stages, " needs", " need"), " ", parts - 1,
                            " cuts, but ", given.size(), " are given"));
  }
  unit_cuts cuts{0};
  for (auto const cut : given) {
    if (cut <= cuts.back() || cut >= units) {
      throw config_error(text("trireme::schedule::cut_units: a cut at unit ", cut, " after one at unit ", cuts.back(),
                              "; cuts must increase, and lie inside a model of ", how_many(units, "unit")));
    }
    cuts.push_back(cut);
  }
  cuts.push_back(units);
  return cuts;
}

}  // namespace trireme::schedule
