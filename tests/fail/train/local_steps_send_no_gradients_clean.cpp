#include "world.hpp"

using namespace trireme;

/// A strategy whose ranks take local steps, and send what they have changed.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
  static constexpr bool sends_changes = true;
};

bool const legal = check_policies<world, nn::gpt, optim::sgd, alone, compression::error_feedback<compression::top_k>>();
