#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::sequence splits rows over the ranks of
// parallel::tensor, which the mesh lacks; add parallel::tensor to the mesh, or leave sequence out
bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::data, parallel::sequence>>();
