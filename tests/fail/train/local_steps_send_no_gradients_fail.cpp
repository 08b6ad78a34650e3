#include "world.hpp"

using namespace trireme;

/// A strategy whose ranks take local steps.
struct alone : parallel::data {
  static constexpr bool local_steps = true;
};

// expected-error: trireme::trainer: illegal combination: the ranks of this strategy take local steps, and it sends
// neither gradients nor changes that a compressor encodes; leave the compressor out, or use parallel::diloco
bool const legal = check_policies<world, nn::gpt, optim::sgd, alone, compression::error_feedback<compression::top_k>>();
