#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/comm/counted.hpp"
#include "trireme/core/text.hpp"
#include "trireme/train/plan.hpp"

/// What is different between a plan and the steps that were taken between two readings of this rank's counters, and
/// between the memory that is planned and what the trainer holds: "" if nothing is.
template <class Trainer>
[[nodiscard]] std::string plan_differences(Trainer& trainer, trireme::training_plan const& plan,
                                           trireme::comm::traffic_table const& before,
                                           trireme::comm::traffic_table const& after) {
  std::string out;
  auto const expect = [&](std::string_view what, auto planned, auto found) {
    if (static_cast<std::int64_t>(planned) != static_cast<std::int64_t>(found))
      out += trireme::text(what, ": planned ", planned, ", found ", found, "\n");
  };
  for (int kind = 0; kind < trireme::comm::collective_kinds; ++kind) {
    auto const what = name_of(static_cast<trireme::comm::collective>(kind));
    auto const& row = plan.sent.by_operation[kind];
    auto const& first = before.by_operation[kind];
    auto const& last = after.by_operation[kind];
    expect(trireme::text("bytes of ", what), row.bytes, last.bytes - first.bytes);
    expect(trireme::text("messages of ", what), row.messages, last.messages - first.messages);
    expect(trireme::text("calls of ", what), row.calls, last.calls - first.calls);
  }
  auto const held = memory_of(trainer);
  expect("parameters", plan.memory.parameters, held.parameters);
  expect("gradients", plan.memory.gradients, held.gradients);
  expect("optimizer", plan.memory.optimizer, held.optimizer);
  expect("buffers", plan.memory.buffers, held.buffers);
  expect("activations", plan.memory.activations, held.activations);
  return out;
}
