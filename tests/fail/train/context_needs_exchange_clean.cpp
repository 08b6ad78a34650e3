#include "world.hpp"

using namespace trireme;

struct collectives_only : world {
  collectives_only split(int color, int key);
  collectives_only duplicate();
  void exchange(int transfers);
};

bool const legal = check_policies<collectives_only, nn::gpt, optim::sgd, parallel::zero<2>>();
