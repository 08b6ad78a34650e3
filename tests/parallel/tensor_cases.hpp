#pragma once

#include <cstdint>
#include <vector>

#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/tensor.hpp"

/// GPTs whose layers are divided among all ranks of a world, on any communicator.
namespace tensor_cases {

using namespace trireme;

inline constexpr std::int64_t context = 11;
inline nn::gpt const odd{
    .vocabulary = 259, .context = context, .layers = 2, .heads = 6, .channels = 18, .dropout = 0.1};
inline nn::gpt const odder{
    .vocabulary = 61, .context = context, .layers = 2, .heads = 5, .channels = 25, .dropout = 0.1};
inline optim::adamw const decaying{.learning_rate = 1e-2, .weight_decay = 0.1, .clip = 1.0};

inline auto twenty_steps(nn::gpt const& model) {
  auto training = toy::of_gpt({.steps = 20, .batch = 5, .micro_batches = 2}, model);
  training.data.left_out = 3;
  return training;
}
inline auto layers_shared(bool cuts_rows) {
  return parallel::mesh{parallel::tensor{}, parallel::sequence{.ways = cuts_rows ? 0 : 1}};
}

/// The model's outputs for some tokens, with its initial values.
template <class Comm, class... Policies>
std::vector<double> answer(Comm& world, nn::gpt const& model, Policies const&... policies) {
  auto trainer = make_trainer(model, world, policies...);
  trainer.initialise(7);
  std::vector<std::int32_t> tokens(3 * context), targets(tokens.size());
  std::vector<std::int64_t> const ids{0, 1, 2};
  toy::text_for(model, 3).read(ids, tokens.data(), targets.data());
  auto const logits = trainer.predict(tensor_view<std::int32_t const>(tokens.data(), {3, context}));
  return {logits.span().begin(), logits.span().end()};
}

/// The tolerance of a training with divided layers.
struct limits {
  double losses, norms, worst;
};
inline void check(toy::outcome const& found, toy::outcome const& serial, limits const& most) {
  auto const far = toy::between(found, serial);
  CHECK(far.losses < most.losses);
  CHECK(far.norms < most.norms);
  CHECK(far.worst < most.worst);
  CHECK(found.different == 0);
}

}  // namespace tensor_cases
