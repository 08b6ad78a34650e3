#pragma once

#include <cstdint>
#include <span>

#include "trireme/contract/dataset.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/optim/adamw.hpp"
#include "trireme/optim/sgd.hpp"

/// The GPT that tests train, small and of odd sizes, a text for it, and two optimizers.
namespace toy {

inline trireme::nn::gpt const gpt{
    .vocabulary = 37, .context = 12, .layers = 2, .heads = 3, .channels = 24, .dropout = 0.1};

/// The same with more units, for pipelines.
inline trireme::nn::gpt with_layers(std::int64_t layers) {
  auto deep = gpt;
  deep.layers = layers;
  return deep;
}

/// Tokens that a small model can learn to continue: sample s follows from s alone.
struct text {
  std::int64_t samples = 45;
  std::int64_t vocabulary = gpt.vocabulary;
  std::int64_t context = gpt.context;
  std::int64_t left_out = -1;  // where no sample has a target

  [[nodiscard]] std::int64_t size() const { return samples; }
  [[nodiscard]] trireme::dtype input_type() const { return trireme::dtype::i32; }
  [[nodiscard]] trireme::dtype target_type() const { return trireme::dtype::i32; }
  [[nodiscard]] trireme::shape input_shape() const { return {context}; }
  [[nodiscard]] trireme::shape target_shape() const { return {context}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      auto const token = [&](std::int64_t t) {
        return static_cast<std::int32_t>((id * 7 + t * (1 + id % 3)) % vocabulary);
      };
      for (std::int64_t t = 0; t < context; ++t) {
        *in++ = token(t);
        *out++ = t == left_out ? -1 : token(t + 1);
      }
    }
  }
};
inline text text_for(trireme::nn::gpt const& model, std::int64_t samples) {
  return {.samples = samples, .vocabulary = model.vocabulary, .context = model.context};
}

// Weights are compared under sgd: where a gradient is zero but for rounding (the bias of the keys, say, which softmax
// cancels), adamw divides that rounding by its own size, and two correct runs walk apart. Clipping is on in both.
inline trireme::optim::sgd const steady{.learning_rate = 0.1, .momentum = 0.9, .clip = 1.0};
inline trireme::optim::adamw const adaptive{.learning_rate = 1e-2, .clip = 1.0};

}  // namespace toy
