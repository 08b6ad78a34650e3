#include "world.hpp"

using namespace trireme;

/// A strategy whose ranks take local steps.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<alone, parallel::tensor>>();
