#include "world.hpp"

using namespace trireme;

/// A strategy whose ranks take local steps.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

// expected-error: trireme::trainer: illegal combination: where ranks take local steps, as in parallel::diloco, no
// gradients are sent that a compressor could encode; leave the compressor out
bool const legal = check_policies<world, nn::gpt, optim::sgd, alone, compression::error_feedback<compression::top_k>>();
