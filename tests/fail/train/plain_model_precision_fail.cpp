#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: a plain model stores its own numbers, which a mixed precision
// cannot change; use precision::fp32 (or fp64), or describe the model in units
bool const legal = check_policies<world, spline, optim::sgd, precision::bf16>();
