#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::zero<3> drops parameters between their uses, but a
// plain model keeps its own; use parallel::zero<2>, or describe the model in units
bool const legal = check_policies<world, spline, optim::sgd, parallel::zero<3>>();
