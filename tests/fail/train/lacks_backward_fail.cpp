#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: model lacks backward(ready)
struct one_way {
  void visit_parameters(auto&& visit);
  float forward(trireme::samples const& batch);
};

bool const legal = check_policies<world, one_way, optim::sgd>();
