#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: a plain model cannot be cut by tensor, sequence, context,
// pipeline or expert; use parallel::data or parallel::zero, or describe the model in units
bool const legal = check_policies<world, spline, optim::sgd, parallel::mesh<parallel::data, parallel::pipeline<>>>();
