#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/train/make.hpp"

/// A small GPT and a text for it, and a training whose result can be compared whole.
namespace toy {

inline trireme::nn::gpt const gpt{
    .vocabulary = 37, .context = 12, .layers = 2, .heads = 3, .channels = 24, .dropout = 0.1};

/// Text of a kind: sample s follows from s alone.
struct text {
  [[nodiscard]] std::int64_t size() const { return 45; }
  [[nodiscard]] trireme::dtype input_type() const { return trireme::dtype::i32; }
  [[nodiscard]] trireme::dtype target_type() const { return trireme::dtype::i32; }
  [[nodiscard]] trireme::shape input_shape() const { return {12}; }
  [[nodiscard]] trireme::shape target_shape() const { return {12}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      for (int t = 0; t < 12; ++t) {
        *in++ = static_cast<std::int32_t>((id * 7 + t * (1 + id % 3)) % 37);
        *out++ = static_cast<std::int32_t>((id * 7 + (t + 1) * (1 + id % 3)) % 37);
      }
    }
  }
};

struct outcome {
  std::vector<double> weights;
  std::vector<double> norms;
  std::vector<double> losses;
  std::uint64_t hash = 0;
};

// Weights are compared under sgd: where a gradient is zero but for rounding (the bias of the keys, say, which softmax
// cancels), adamw divides that rounding by its own size, and two correct runs walk apart. Clipping is on in both.
inline trireme::optim::sgd const steady{.learning_rate = 0.1, .momentum = 0.9, .clip = 1.0};
inline trireme::optim::adamw const adaptive{.learning_rate = 1e-2, .clip = 1.0};
inline trireme::fit_options const twelve_steps{.steps = 12, .batch = 10, .micro_batches = 6};

/// Trains for some steps, of which the last in each epoch is short and uneven, and keeps all that can be compared.
template <class Comm, class Optimizer, class... Policies>
outcome train(Comm& world, Optimizer const& optimizer, Policies... policies) {
  auto trainer = trireme::make_trainer(gpt, optimizer, world, policies...);
  trainer.initialise(7);
  outcome out;
  trainer.on_step([&](trireme::step_report const& done) {
    out.norms.push_back(done.norm);
    out.losses.push_back(done.loss);
  });
  trainer.fit(text{}, twelve_steps);
  for (auto const& entry : trainer.exchange().plan().entries()) {
    for (auto const value : trainer.exchange().parameter_values(entry).span()) {
      out.weights.push_back(static_cast<double>(value));
    }
  }
  out.hash = trainer.state_hash();
  return out;
}

/// What the last rank has in the end.
template <class Optimizer, class... Policies>
outcome train_on(int ranks, Optimizer const& optimizer, Policies... policies) {
  outcome out;
  trireme::launch(trireme::comm::threads{.ranks = ranks}, [&](auto& world) {
    auto mine = train(world, optimizer, policies...);
    if (world.rank() == world.size() - 1) out = std::move(mine);
  });
  return out;
}
template <class Optimizer>
outcome train_alone(Optimizer const& optimizer) {
  trireme::comm::self_world world;
  return train(world, optimizer);
}

/// The largest difference, relative to the largest number.
inline double distance(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(a[i]));
  }
  return most / largest;
}

}  // namespace toy
