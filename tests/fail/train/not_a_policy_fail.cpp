#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: not a policy: each argument must be a model, an optimizer, a communicator or a
// policy
bool const legal = check_policies<int, world, nn::gpt, optim::adamw>();
