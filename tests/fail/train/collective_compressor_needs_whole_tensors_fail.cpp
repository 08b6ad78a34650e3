#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: this compressor works on whole tensors, of which an axis such
// as parallel::tensor gives a rank only parts; use compression::cast or top_k with such an axis
bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::data, parallel::tensor>,
                                  compression::power_sgd>();
