#include "world.hpp"

using namespace trireme;

/// A model that normalises over all data ranks.
struct joint : nn::gpt {
  static constexpr bool synchronises = true;
};
/// A strategy whose ranks take steps alone.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

// expected-error: trireme::trainer: illegal combination: the model normalises over the micro-batches that all data
// ranks run at the same time, but here ranks take steps alone, as in parallel::diloco, or an axis shares out samples or
// experts among them; use parallel::data or zero, or normalise each micro-batch by itself
bool const legal = check_policies<world, joint, optim::sgd, alone>();
