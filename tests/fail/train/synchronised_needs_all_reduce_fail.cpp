#include "world.hpp"

using namespace trireme;

/// A model that normalises over all data ranks.
struct joint : nn::gpt {
  static constexpr bool synchronises = true;
};

// expected-error: trireme::trainer: illegal combination: the model normalises over all data ranks, which needs an
// all_reduce of sums that this communicator lacks; use another communicator
struct counts_only : world {
  counts_only split(int color, int key);
  counts_only duplicate();
  void all_reduce(tensor_view<std::int64_t> values, auto op);
  void all_reduce(tensor_view<double> values, auto op);
  void all_reduce(tensor_view<std::uint64_t> values, auto op);
};

bool const legal = check_policies<counts_only, joint, optim::sgd, compression::top_k, parallel::data>();
