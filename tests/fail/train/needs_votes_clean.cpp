#include "world.hpp"

using namespace trireme;

struct mute : world {
  mute split(int color, int key);
  mute duplicate();
  void all_reduce(int values);
};

bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::zero<1>>();
