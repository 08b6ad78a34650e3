#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: a plain model stores its own numbers, which a mixed precision
// cannot change; use precision::fp32 (or fp64), let the model cast by itself (compute_in and
// backward(ready, scale)), or describe it in units
bool const legal = check_policies<world, spline, optim::sgd, precision::bf16>();
