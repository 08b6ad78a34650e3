#include "world.hpp"

using namespace trireme;

/// A strategy whose ranks take steps alone.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

// expected-error: trireme::trainer: illegal combination: where ranks take steps alone, as in parallel::diloco,
// no axis may share out samples or experts among them; use parallel::data or zero beside such an axis
bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<alone, parallel::context>>();
