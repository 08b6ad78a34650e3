#include "shelf.hpp"

using namespace trireme;

// expected-error: trireme::optim::adamw needs the kernels of ops::adamw_kernels, of which the communicator's memory
// space lacks some; add them to it (the headers of ops/sets list them), or leave optim::adamw out
bool const legal = check_policies<shelf_world, spline, optim::adamw>();
