#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: no optimizer: pass a description such as optim::adamw{}
bool const legal = check_policies<nn::gpt, world>();
