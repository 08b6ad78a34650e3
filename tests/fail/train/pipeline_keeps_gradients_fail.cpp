#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::zero<2> and zero<3> exchange every micro-batch,
// which a pipeline's schedule does not support; use parallel::zero<1> beside parallel::pipeline
bool const legal =
    check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::zero<2>, parallel::pipeline<>>>();
