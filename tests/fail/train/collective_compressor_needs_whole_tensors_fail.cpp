#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: this compressor works on whole tensors, of which
// parallel::tensor and parallel::expert give a rank only parts; use compression::cast or top_k beside them
bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::data, parallel::tensor>,
                                  compression::power_sgd>();
