#include "trireme/parallel/diloco.hpp"
#include "world.hpp"

using namespace trireme;

bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::diloco, parallel::tensor>>();
