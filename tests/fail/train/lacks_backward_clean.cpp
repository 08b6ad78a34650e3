#include "world.hpp"

using namespace trireme;

struct one_way {
  void visit_parameters(auto&& visit);
  float forward(trireme::samples const& batch);
};

bool const legal = check_policies<world, spline, optim::sgd>();
