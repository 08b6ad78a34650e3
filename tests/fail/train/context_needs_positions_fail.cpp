#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::context divides the positions of samples, which
// the model's units must support; use parallel::data, or give the model a static cuts_context = true if they do
bool const legal = check_policies<world, nn::mlp, optim::sgd, parallel::context>();
