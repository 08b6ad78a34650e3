#include "world.hpp"

using namespace trireme;

struct counts_only : world {
  counts_only split(int color, int key);
  counts_only duplicate();
  void all_reduce(tensor_view<std::int64_t> values, auto op);
  void all_reduce(tensor_view<double> values, auto op);
  void all_reduce(tensor_view<std::uint64_t> values, auto op);
};

bool const legal = check_policies<counts_only, nn::gpt, optim::sgd, compression::top_k, parallel::data>();
