// What stands beside a trainer, compiled with every warning (tests/headers.cmake): plans, sweeps, a trainer whose
// policies are chosen at run time, timelines, progress, and files.
#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "trireme/comm/counted.hpp"
#include "trireme/formats/chrome_trace.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/formats/tensorboard.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/observe/progress.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/train/any_trainer.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/sweep.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

void plans() {
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    auto trainer = make_trainer(nn::gpt{}, optim::adamw{}, world, parallel::zero<3>{}, precision::bf16{});
    fmt::print("{}", to_string(plan(trainer, {.samples = 16, .micro_batches = 4})));
  });
  parallel::mesh const how{parallel::zero<1>{}, parallel::pipeline<>{.stages = 16}, parallel::tensor{.ways = 8},
                           parallel::sequence{}};
  fmt::print("{}", to_string(plan_for({.ranks = 16384}, nn::gpt{}, optim::adamw{}, how, precision::bf16{})));
}

void sweeps() {
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    auto const data = data::function([](float x) { return x * x; }, {.samples = 4096});
    strategies const list{parallel::data{}, parallel::zero<3>{},
                          parallel::mesh{parallel::zero<1>{}, parallel::pipeline<>{.stages = 2}}};
    auto const rows = sweep(list, nn::mlp{}, data, world, {.batch = 64}, optim::sgd{.learning_rate = 0.1});
    fmt::print("{}", to_string(rows));
  });
}

void trainer_of_any_kind(comm::threads_world& world, std::vector<std::int32_t> const& tokens) {
  auto trainer = make_any_trainer(nn::gpt{}, optim::adamw{}, world, parallel::zero<1>{}, precision::bf16{});
  auto const size = static_cast<std::int64_t>(tokens.size());
  auto const view = tensor_view<std::int32_t const>(tokens.data(), {1, size});
  observe::timeline timeline(world.rank());
  observe::progress progress;
  formats::tensorboard::writer scalars(formats::tensorboard::event_file_name());
  trainer->record(timeline);
  trainer->on_step([&](step_report const& done) {
    scalars.add(done.step, "loss", done.loss);
    progress.message(fmt::format("{}", done.seconds));
  });
  trainer->fit(data::any_dataset(data::in_memory(view, view)), {.steps = 10, .batch = 4});
  auto const packed = observe::pack(timeline);
  auto const all = observe::unpack(packed);
  std::vector<trace_process> const processes{all.process()};
  formats::chrome_trace::write("timeline.json", processes);
  trainer->for_each_parameter([](std::string const& name, shape const& extents, std::span<float const> values) {
    formats::safetensors::writer file(name, {{name, dtype::f32, extents}});
    file.write(std::as_bytes(values));
    file.finish();
  });
  fmt::print("{}", formats::json::parse("{}", "none").as_object().size());
}
