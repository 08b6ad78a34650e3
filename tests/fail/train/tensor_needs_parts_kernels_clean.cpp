#include "shelf.hpp"

using namespace trireme;

bool const legal = check_policies<bench_world, nn::gpt, optim::sgd, parallel::data>();
