#include "world.hpp"

using namespace trireme;

bool const legal = check_policies<world, spline, optim::sgd, parallel::mesh<parallel::data>>();
