#pragma once

#include <cstdint>

#include "../catch.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

/// Checks that a plan says how much memory a training of two steps takes for activations, alone and on two ranks of a
/// tensor group.
template <class Model, class Data>
void check_planned_activations(Model const& model, Data const& data) {
  using namespace trireme;
  auto const taken = [&](auto& world, auto const& policy) {
    auto trainer = make_trainer(model, optim::adamw{}, world, policy);
    auto const planned = plan(trainer, data, {.samples = 6, .micro_batches = 2}).memory.activations;
    trainer.fit(data, {.steps = 2, .batch = 6, .micro_batches = 2});
    if (world.rank() == 0) CHECK(planned == static_cast<std::int64_t>(trainer.engine().peak_bytes()));
  };
  comm::self_world self;
  taken(self, parallel::data{});
  launch(comm::threads{.ranks = 2}, [&](auto& world) { taken(world, parallel::tensor{}); });
}
