#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::context cuts samples into positions, and the model
// does not say that its units know of them; use parallel::data, or give the model a static cuts_context = true if they
// do
bool const legal = check_policies<world, nn::mlp, optim::sgd, parallel::context>();
