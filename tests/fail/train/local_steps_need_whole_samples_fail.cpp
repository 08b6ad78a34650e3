#include "world.hpp"

using namespace trireme;

/// A strategy whose ranks take steps alone.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

// expected-error: trireme::trainer: illegal combination: where ranks take steps alone, as in parallel::diloco,
// parallel::context and expert have nobody to share with; use parallel::data or zero beside them
bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<alone, parallel::context>>();
