#include "shelf.hpp"

using namespace trireme;

// expected-error: trireme::compression::top_k needs the kernels of ops::selection_kernels, of which the communicator's
// memory space lacks some; add them to it (the headers of ops/sets list them), or leave compression::top_k out
bool const legal = check_policies<shelf_world, spline, optim::sgd, compression::top_k>();
