#include "world.hpp"

using namespace trireme;

/// A strategy whose ranks take steps alone.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

// expected-error: trireme::trainer: illegal combination: where ranks take steps alone, as in parallel::diloco, no
// gradients are sent that a compressor could code; leave the compressor out
bool const legal = check_policies<world, nn::gpt, optim::sgd, alone, compression::error_feedback<compression::top_k>>();
