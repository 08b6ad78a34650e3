#include "world.hpp"

using namespace trireme;

/// A model that normalises over all data ranks.
struct joint : nn::gpt {
  static constexpr bool synchronises = true;
};

bool const legal = check_policies<world, joint, optim::sgd, parallel::data>();
