#include "world.hpp"

using namespace trireme;

struct sums_only : world {
  sums_only split(int color, int key);
  sums_only duplicate();
  void all_reduce(tensor_view<float> values, reduction::sum op);
  void all_reduce(tensor_view<std::int64_t> values, auto op);
  void all_reduce(tensor_view<std::uint64_t> values, auto op);
  void all_reduce(tensor_view<double> values, auto op);
};

bool const legal = check_policies<sums_only, nn::gpt, optim::sgd, parallel::data>();
