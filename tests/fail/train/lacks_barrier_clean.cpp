#include "world.hpp"

using namespace trireme;

struct hurried : world {
  hurried split(int color, int key);
  hurried duplicate();
  void barrier(int reason);
};
struct patient : world {
  patient split(int color, int key);
  patient duplicate();
};

bool const legal = check_policies<patient, nn::gpt, optim::adamw>();
