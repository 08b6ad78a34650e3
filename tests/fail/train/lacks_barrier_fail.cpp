#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: communicator lacks barrier()
struct hurried : world {
  hurried split(int color, int key);
  hurried duplicate();
  void barrier(int reason);
};
struct patient : world {
  patient split(int color, int key);
  patient duplicate();
};

bool const legal = check_policies<hurried, nn::gpt, optim::adamw>();
