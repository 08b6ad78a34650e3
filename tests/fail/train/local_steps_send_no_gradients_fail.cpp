#include "trireme/parallel/diloco.hpp"
#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: where ranks take steps alone, as in parallel::diloco, no
// gradients are sent that a compressor could code; leave the compressor out
bool const legal =
    check_policies<world, nn::gpt, optim::sgd, parallel::diloco, compression::error_feedback<compression::top_k>>();
