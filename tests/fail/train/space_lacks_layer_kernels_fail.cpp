#include "shelf.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: the model is made of layers whose kernels the communicator's
// memory space lacks; add the kernels of ops::dense_kernels to its ops::on, or use a plain model
bool const legal = check_policies<shelf_world, nn::gpt, optim::sgd>();
