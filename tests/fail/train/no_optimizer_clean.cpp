#include "world.hpp"

using namespace trireme;

bool const legal = check_policies<nn::gpt, world, optim::sgd>();
