#include "shelf.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: parallel::tensor distributes words over ranks, and the
// communicator's memory space lacks kernels for it; add the kernels of ops::parts_kernels to its ops::on, or leave the
// axis out
bool const legal = check_policies<bench_world, nn::gpt, optim::sgd, parallel::tensor>();
