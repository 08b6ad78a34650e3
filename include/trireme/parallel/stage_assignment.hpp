#pragma once

#include <functional>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/parallel/schedules/cut_units.hpp"
#include "trireme/parallel/schedules/step.hpp"

namespace trireme::parallel {

/// The stage of one engine: its units, and its schedule for any number of micro-batches.
struct stage_assignment {
  int stage = 0;
  schedule::stage_map where;                                           ///< without micro-batches
  schedule::unit_cuts cuts;                                            ///< part q has units [cuts[q], cuts[q + 1])
  std::function<schedule::step_lists(int micro_batches)> lists;        ///< of all stages
  std::function<std::vector<int>(schedule::step_lists const&)> peaks;  ///< micro-batches in flight, by stage
};

/// The single stage of an engine that has all units: each micro-batch forward, then backward.
template <staged_model Model>
[[nodiscard]] stage_assignment single_stage(Model const& model) {
  trireme::detail::counts_units units;
  model.units(units);
  return {.where = {{1, 0, 1}, schedule::placement::straight},
          .cuts = {0, units.count},
          .lists =
              [](int micro_batches) {
                schedule::step_lists lists({{1, micro_batches, 1}, schedule::placement::straight});
                for (int m = 0; m < micro_batches; ++m) {
                  lists.add(0, {.kind = schedule::work::forward, .micro_batch = m});
                  lists.add(0, {.kind = schedule::work::backward, .micro_batch = m});
                }
                return lists;
              },
          .peaks = [](schedule::step_lists const&) { return std::vector<int>{1}; }};
}

}  // namespace trireme::parallel
