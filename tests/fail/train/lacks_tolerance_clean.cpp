#include "world.hpp"

using namespace trireme;

struct careless {
  using policy_category = slot::precision;
  using param = float;
  using compute = float;
  using accumulate = float;
  using reduce = float;
  using master = float;
};

bool const legal = check_policies<world, nn::gpt, optim::sgd, precision::fp64>();
