#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: no communicator: pass the world that launch() gives, or comm::self_world for one
// rank
bool const legal = check_policies<nn::gpt, optim::adamw>();
