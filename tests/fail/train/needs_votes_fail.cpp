#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: every trainer votes with all_reduce and compares ranks with
// all_gather
struct mute : world {
  mute split(int color, int key);
  mute duplicate();
  void all_reduce(int values);
};

bool const legal = check_policies<mute, nn::gpt, optim::sgd, parallel::zero<1>>();
