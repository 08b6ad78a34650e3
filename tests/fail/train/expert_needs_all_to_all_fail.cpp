#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::expert needs ragged all_to_all, all_gather and
// all_reduce, but this communicator lacks one of them; use another communicator
struct even_only : world {
  even_only split(int color, int key);
  even_only duplicate();
  void all_to_all(auto from, auto to);
  request all_to_all_async(auto from, auto to);
};

bool const legal = check_policies<even_only, nn::gpt, optim::sgd, parallel::mesh<parallel::data, parallel::expert>>();
