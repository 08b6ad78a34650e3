#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/parameter_server.hpp"
#include "world.hpp"

using namespace trireme;

bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::diloco, parallel::zero<2>>>();
