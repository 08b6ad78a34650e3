#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: this compressor takes whole gradients once per step, but
// parallel::zero<2> and zero<3> send every micro-batch; use parallel::zero<1>
bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::zero<3>, compression::power_sgd>();
