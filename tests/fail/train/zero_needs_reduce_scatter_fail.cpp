#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::zero needs reduce_scatter and all_gather, which this
// communicator lacks
struct no_scatter : world {
  no_scatter split(int color, int key);
  no_scatter duplicate();
  void reduce_scatter(int values);
};

bool const legal = check_policies<no_scatter, nn::gpt, optim::sgd, parallel::zero<1>>();
