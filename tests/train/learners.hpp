#pragma once

#include <string>

#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/parallel/any_pipeline.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/trireme.hpp"

// Two learners of parallel::diloco that are meshes train as two learners of one rank each.
namespace learners {

using namespace trireme;

inline parallel::diloco const nesterov{.period = 3, .bucket_bytes = 1 << 12, .ways = 2};
inline auto const ten_steps = toy::of_gpt({.steps = 10, .batch = 8, .micro_batches = 4}, toy::with_layers(2), 24);

/// The axes within a learner.
struct degrees {
  int ways = 1, stages = 1, context = 1, tensor = 1;
};
[[nodiscard]] inline int ranks_of(degrees const& of) { return 2 * of.ways * of.stages * of.context * of.tensor; }
template <class Inner>
[[nodiscard]] auto mesh_of(Inner inner, degrees const& of, parallel::diloco const& outer) {
  inner.ways = of.ways;
  inner.bucket_bytes = 1 << 12;
  if constexpr (Inner::gradients == distribution::shard) {
    return parallel::mesh{outer, inner, parallel::context{.ways = of.context}, parallel::tensor{.ways = of.tensor}};
  } else {
    return parallel::mesh{outer, inner, parallel::any_pipeline{.schedule = "1f1b", .stages = of.stages},
                          parallel::context{.ways = of.context}, parallel::tensor{.ways = of.tensor}};
  }
}

template <class Inner>
void check(watchdog& guard, Inner const& inner, toy::outcome const& expected, parallel::diloco const& outer,
           std::initializer_list<degrees> all) {
  for (auto const& of : all) {
    guard.now(describe(mesh_of(inner, of, outer)));
    INFO(describe(mesh_of(inner, of, outer)));
    toy::check_near(ten_steps.on(ranks_of(of), toy::steady, mesh_of(inner, of, outer)).front(), expected, 1e-5, 1e-4);
  }
}

}  // namespace learners
