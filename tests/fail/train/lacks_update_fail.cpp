#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: optimizer lacks update(segment, step)
struct idle : optim::sgd {
  void update(int segment);
};

bool const legal = check_policies<world, nn::gpt, idle>();
