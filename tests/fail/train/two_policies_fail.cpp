#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: two policies for one slot: remove one of the optimizers
bool const legal = check_policies<world, nn::gpt, optim::adamw, optim::sgd>();
