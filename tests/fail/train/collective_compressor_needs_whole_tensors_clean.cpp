#include "world.hpp"

using namespace trireme;

bool const legal =
    check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::data, parallel::tensor>, compression::top_k>();
