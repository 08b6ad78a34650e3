#include "shelf.hpp"

using namespace trireme;

bool const legal = check_policies<shelf_world, spline, optim::sgd>();
