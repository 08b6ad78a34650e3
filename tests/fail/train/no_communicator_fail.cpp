#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: no communicator: pass the world that launch() gives, or comm::self_world if one
// rank is what you mean
bool const legal = check_policies<nn::gpt, optim::adamw>();
