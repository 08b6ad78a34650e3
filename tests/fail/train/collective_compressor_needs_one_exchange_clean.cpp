#include "world.hpp"

using namespace trireme;

bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::zero<1>, compression::power_sgd>();
