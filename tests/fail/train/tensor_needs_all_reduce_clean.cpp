#include "world.hpp"

using namespace trireme;

struct sums_only : world {
  sums_only split(int color, int key);
  sums_only duplicate();
  void all_reduce(auto values, reduction::sum op);
};

bool const legal = check_policies<sums_only, nn::gpt, optim::sgd, parallel::data>();
