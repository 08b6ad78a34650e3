#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::tensor needs all_reduce of activations with sum and
// max, which this communicator lacks; use another communicator
struct sums_only : world {
  sums_only split(int color, int key);
  sums_only duplicate();
  void all_reduce(auto values, reduction::sum op);
};

bool const legal = check_policies<sums_only, nn::gpt, optim::sgd, parallel::tensor>();
