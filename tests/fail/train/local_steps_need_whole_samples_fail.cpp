#include "world.hpp"

using namespace trireme;

/// A strategy whose ranks take local steps.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

// expected-error: trireme::trainer: illegal combination: where ranks take local steps, as in parallel::diloco, no axis
// may distribute samples or experts over them; use parallel::data or zero with such an axis
bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<alone, parallel::context>>();
