#include "world.hpp"

using namespace trireme;

struct even_only : world {
  even_only split(int color, int key);
  even_only duplicate();
  void all_to_all(auto from, auto to);
  request all_to_all_async(auto from, auto to);
};

bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::data, parallel::expert>>() &&
                   check_policies<even_only, nn::gpt, optim::sgd, parallel::zero<1>>();
