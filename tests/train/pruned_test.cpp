// test-sanitize: none
// Pruned matrices under the strategies, and in checkpoints.
#include "trireme/optim/pruned.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/adamw.hpp"
#include "trireme/optim/any.hpp"
#include "trireme/optim/muon.hpp"
#include "trireme/train/make_trainer.hpp"

using namespace trireme;

namespace {

using any_optimizer = optim::any<environment<precision::fp32>>;

nn::mlp const model{.inputs = 4, .hidden = {20, 48}, .outputs = 2};

struct points {
  std::vector<float> inputs, targets;
  points() {
    for (int i = 0; i < 24; ++i) {
      for (int j = 0; j < 4; ++j) inputs.push_back(std::sin(static_cast<float>(4 * i + j)));
      targets.insert(targets.end(), {inputs[inputs.size() - 4] * 0.7F, std::cos(static_cast<float>(i))});
    }
  }
};

struct outcome {
  std::uint64_t hash = 0;
  std::map<std::string, std::vector<float>> values;
};
struct plan_of_run {
  int ranks = 1;
  std::int64_t steps = 4;
  std::string load{}, save{};
};

template <class Strategy>
outcome run(any_optimizer const& optimizer, Strategy strategy, plan_of_run const& how) {
  strategy.bucket_bytes = 1 << 12;
  strategy.reproducible = true;
  outcome out;
  points const samples;
  data::in_memory const data(tensor_view<float const>(samples.inputs.data(), {24, 4}),
                             tensor_view<float const>(samples.targets.data(), {24, 2}));
  watchdog const watch("pruned matrices");
  launch(comm::threads{.ranks = how.ranks}, [&](auto& world) {
    auto trainer = make_trainer(model, optimizer, world, strategy);
    trainer.initialise(3);
    if (!how.load.empty()) trainer.load(how.load);
    trainer.fit(data, {.steps = 8, .batch = 8, .micro_batches = 4, .stop_after = how.steps});
    if (!how.save.empty()) trainer.save(how.save);
    auto const hash = trainer.state_hash();
    trainer.for_each_parameter([&](std::string const& name, shape const&, std::span<float const> values) {
      if (world.rank() == 0) out.values[name].assign(values.begin(), values.end());
    });
    if (world.rank() == 0) out.hash = hash;
  });
  return out;
}
outcome run(any_optimizer const& optimizer, bool zero, plan_of_run const& how) {
  return zero ? run(optimizer, parallel::zero<2>{}, how) : run(optimizer, parallel::data{}, how);
}

/// The positions of zeros.
std::map<std::string, std::vector<bool>> zeros_of(outcome const& in) {
  std::map<std::string, std::vector<bool>> out;
  for (auto const& [name, values] : in.values) {
    for (auto const each : values) out[name].push_back(each == 0);
  }
  return out;
}

}  // namespace

TEST_CASE("pruned runs have the same bits under each strategy and when resumed, and their zeros stay", "[train]") {
  std::vector<optim::pruning> const list{{.names = "layers.1.weight", .ratio = 0.75, .after = 2},
                                         {.names = "*.weight layers.0.bias", .two_of_four = true}};
  for (any_optimizer const& optimizer :
       {any_optimizer(optim::pruned{optim::adamw{.learning_rate = 1e-2, .clip = 0.1}, list}),
        any_optimizer(optim::pruned{optim::muon{}, list})}) {
    auto const serial = run(optimizer, false, {.steps = 6});
    auto const early = run(optimizer, false, {.steps = 3});
    auto const zeros = zeros_of(serial);
    CHECK(zeros == zeros_of(early));
    auto const found = [&](std::string const& name) {
      return std::count(zeros.at(name).begin(), zeros.at(name).end(), true);
    };
    CHECK(found("layers.0.weight") == 4 * 20 / 2);
    CHECK(found("layers.1.weight") == 20 * 48 * 3 / 4);
    CHECK(found("layers.2.weight") == 48 * 2 / 2);
    CHECK(found("layers.0.bias") == 0);
    for (bool const zero : {false, true}) {
      INFO((zero ? "zero<2>" : "data"));
      CHECK(run(optimizer, zero, {.ranks = 2, .steps = 6}).hash == serial.hash);
      scratch const folder;  // after one kind of choice, before the other
      run(optimizer, !zero, {.ranks = 4, .steps = 2, .save = folder.path()});
      CHECK(run(optimizer, zero, {.ranks = 2, .steps = 6, .load = folder.path()}).hash == serial.hash);
      scratch const later;
      run(optimizer, zero, {.ranks = 2, .steps = 4, .save = later.path()});
      CHECK(run(optimizer, !zero, {.ranks = 1, .steps = 6, .load = later.path()}).hash == serial.hash);
    }
  }
}
