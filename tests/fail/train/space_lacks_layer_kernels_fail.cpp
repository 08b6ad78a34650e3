#include "shelf.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: the model is made of layers whose kernels the communicator's
// memory space lacks; give its ops::on what ops::layer_kernels lists, or use a plain model
bool const legal = check_policies<shelf_world, nn::gpt, optim::sgd>();
