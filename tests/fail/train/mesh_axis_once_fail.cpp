#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: a mesh has two axes of the same kind; leave one of them out,
// and multiply its degree into the other
bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::data, parallel::zero<1>>>();
