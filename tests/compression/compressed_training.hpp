#pragma once

#include <cstdint>
#include <string>

#include "../support/shared_scratch.hpp"
#include "../support/training.hpp"
#include "trireme/compression/compression.hpp"

/// Properties of a training with any compressor, on any communicator: each case returns what it found wrong on this
/// rank, or nothing.
namespace compressed {

using namespace trireme;

inline fit_options until(std::int64_t step, std::int64_t all = 12) {
  return {.steps = all, .batch = 10, .micro_batches = 6, .stop_after = step};
}

/// A run that is saved after 4 steps, destroyed and resumed equals an uninterrupted one, bit for bit.
template <class Comm, class... Policies>
std::string resumes(Comm& world, Policies... policies) {
  shared_scratch folder(world);
  auto const make = [&] { return make_trainer(toy::gpt, toy::adaptive, world, policies...); };
  std::uint64_t saved = 0, whole = 0;
  {
    auto trainer = make();
    trainer.initialise(5);
    trainer.fit(toy::text{}, until(4));
    trainer.save(folder.path());
    saved = trainer.state_hash();
    trainer.fit(toy::text{}, until(9));
    whole = trainer.state_hash();
  }
  std::string problem;
  {
    auto trainer = make();
    trainer.initialise(6);
    trainer.fit(toy::text{}, until(2));  // replaced by load()
    trainer.load(folder.path());
    if (trainer.state_hash() != saved) problem += "not what was saved; ";
    trainer.fit(toy::text{}, until(9));
    if (trainer.state_hash() != whole) problem += "the resumed run is another one; ";
    trainer.initialise(5);
    trainer.fit(toy::text{}, until(9));
    if (trainer.state_hash() != whole) problem += "a run begun anew is another one; ";
  }
  world.barrier();  // before the directory is removed
  return problem;
}

/// After 200 steps the loss has fallen by at least `part` of its fall without a compressor.
template <class Comm, class... Policies>
std::string learns(Comm& world, double part, Policies... policies) {
  auto const run = [&](auto... chosen) {
    auto trainer = make_trainer(toy::gpt, toy::steady, world, chosen...);
    trainer.initialise(7);
    return trainer.fit(toy::text{}, until(-1, 200));
  };
  auto const plain = run();
  auto const found = run(policies...);
  bool const enough = plain.first_loss - found.last_loss >= part * (plain.first_loss - plain.last_loss);
  return enough ? std::string() : text("a loss of ", found.last_loss, ", without it ", plain.last_loss);
}

}  // namespace compressed
