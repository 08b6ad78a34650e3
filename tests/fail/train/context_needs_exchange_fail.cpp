#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::context needs exchange and the ragged all_to_all,
// which this communicator lacks; use another communicator
struct collectives_only : world {
  collectives_only split(int color, int key);
  collectives_only duplicate();
  void exchange(int transfers);
};

bool const legal = check_policies<collectives_only, nn::gpt, optim::sgd, parallel::context>();
