#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: a plain model is whole on every rank, and supports only axes
// along which ranks see different whole samples; use parallel::data or parallel::zero, or describe the model in units
bool const legal = check_policies<world, spline, optim::sgd, parallel::mesh<parallel::data, parallel::pipeline<>>>();
