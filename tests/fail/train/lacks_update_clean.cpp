#include "world.hpp"

using namespace trireme;

struct idle : optim::sgd {
  void update(int segment);
};

bool const legal = check_policies<world, nn::gpt, optim::sgd>();
