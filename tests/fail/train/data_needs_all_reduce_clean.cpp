#include "world.hpp"

using namespace trireme;

struct few_types : world {
  few_types split(int color, int key);
  few_types duplicate();
  template <class T>
  void all_reduce(tensor_view<T> values, auto op) requires(!std::is_same_v<T, float>);
};

bool const legal = check_policies<few_types, nn::gpt, optim::sgd, compression::top_k>();
