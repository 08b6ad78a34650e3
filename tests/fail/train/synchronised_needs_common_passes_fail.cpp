#include "world.hpp"

using namespace trireme;

/// A model that normalises over all data ranks.
struct joint : nn::gpt {
  static constexpr bool synchronises = true;
};
/// A strategy whose ranks take local steps.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

// expected-error: trireme::trainer: illegal combination: the model normalises over the micro-batches that all data
// ranks run at the same time, but here ranks take local steps, as in parallel::diloco, or an axis distributes samples
// or experts over them; use parallel::data or zero, or normalise each micro-batch by itself
bool const legal = check_policies<world, joint, optim::sgd, alone>();
