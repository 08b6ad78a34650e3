#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: error feedback adds once per step what it left out, but
// parallel::zero<2> and zero<3> send every micro-batch; use parallel::zero<1>
bool const legal =
    check_policies<world, nn::gpt, optim::sgd, parallel::zero<2>, compression::error_feedback<compression::top_k>>();
