#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "../../watchdog.hpp"
#include "trireme/comm/cuda.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/trireme.hpp"

// Trainings of whole models in CUDA memory and in host memory, from the same start and on the same data.
namespace on_device {

using namespace trireme;

/// Words in an order that a model learns within a few steps, the target of each the next one.
struct ordered_words {
  std::int64_t context;
  std::int64_t vocabulary;
  [[nodiscard]] std::int64_t size() const { return 64; }
  [[nodiscard]] dtype input_type() const { return dtype::i32; }
  [[nodiscard]] dtype target_type() const { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {context}; }
  [[nodiscard]] shape target_shape() const { return {context}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    auto const word = [&](std::int64_t id, std::int64_t t) {
      return static_cast<std::int32_t>(4 + (id + 3 * t) % (vocabulary - 4) % 9);
    };
    for (auto const id : ids)
      for (std::int64_t t = 0; t < context; ++t) {
        *in++ = word(id, t);
        *out++ = word(id, t + 1);
      }
  }
};

struct outcome {
  std::vector<double> losses;
  std::vector<float> weights;  // of all tensors, in the order of the model
};

/// How far two trainings are from each other: the largest difference of losses, and of weights over the largest weight.
inline double distance(outcome const& a, outcome const& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  REQUIRE(a.weights.size() == b.weights.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    worst = std::max(worst, std::abs(a.losses[i] - b.losses[i]) / std::max(1.0, std::abs(b.losses[i])));
  for (auto const each : b.weights) largest = std::max(largest, std::abs(static_cast<double>(each)));
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    auto const off = std::abs(static_cast<double>(a.weights[i]) - static_cast<double>(b.weights[i]));
    worst = std::isnan(off) ? off : std::max(worst, off / largest);
    if (std::isnan(off)) return off;
  }
  return worst;
}

struct settings {
  std::int64_t steps = 3;
  std::int64_t batch = 4;
  std::int64_t micro_batches = 0;
};

/// A rank's part of a training; rank 0 writes its outcome.
template <class World, class Model, class Optimizer, class Parallel, class Precision, class Data>
void train_in(World& world, outcome& out, Model const& model, Optimizer const& optimizer, Parallel const& parallel,
              Precision const& precision, Data const& data, settings const& how) {
  auto trainer = make_trainer(model, optimizer, world, parallel, precision);
  trainer.initialise(5);
  trainer.on_step([&](step_report const& done) {
    if (world.rank() == 0) out.losses.push_back(done.loss);
  });
  trainer.fit(data, {.steps = how.steps, .batch = how.batch, .micro_batches = how.micro_batches});
  trainer.change_parameters([&](std::string const&, shape const&, std::span<float> values) {
    if (world.rank() == 0) out.weights.insert(out.weights.end(), values.begin(), values.end());
  });
}

/// Calls body(world) on so many threads, with a world in that memory.
template <class Space, class Body>
void launch_in(int ranks, std::chrono::seconds deadline, Body const& body) {
  launch(comm::threads{.ranks = ranks, .deadline = deadline}, [&](auto& threads) {
    if constexpr (std::is_same_v<Space, host>) {
      body(threads);
    } else {
      auto world = comm::in_space<Space>(threads);
      body(world);
    }
  });
}

template <class Space, class Model, class Optimizer, class Parallel, class Precision, class Data>
outcome train(int ranks, Model const& model, Optimizer const& optimizer, Parallel const& parallel,
              Precision const& precision, Data const& data, settings const& how) {
  watchdog const guard("a training of a model in CUDA memory", std::chrono::seconds(280));
  outcome out;
  launch_in<Space>(ranks, std::chrono::seconds(120),
                   [&](auto& world) { train_in(world, out, model, optimizer, parallel, precision, data, how); });
  return out;
}

/// Trains in both memories and compares.
template <class Model, class Optimizer, class Parallel, class Precision, class Data>
void expect_the_hosts_training(std::string const& what, int ranks, Model const& model, Optimizer const& optimizer,
                               Parallel const& parallel, Precision const& precision, Data const& data, double tolerance,
                               settings const& how = {}) {
  INFO(what << " on " << text(ranks, " ranks"));
  auto const here = train<host>(ranks, model, optimizer, parallel, precision, data, how);
  auto const there = train<cuda>(ranks, model, optimizer, parallel, precision, data, how);
  CHECK(here.losses.back() < here.losses.front());
  CHECK(distance(there, here) <= tolerance);
}

}  // namespace on_device
