#include "shelf.hpp"

using namespace trireme;

/// Memory without kernels.
struct drawer : shelf {};
template <>
struct trireme::ops::on<drawer> {
  static void sgd(auto value, auto velocity, auto gradient, auto outputs, sgd_numbers const& numbers);
};
struct drawer_world : shelf_world {
  using space = drawer;
  drawer_world split(int color, int key);
  drawer_world duplicate();
};

// expected-error: trireme::trainer: illegal combination: the communicator names a memory space that lacks kernels which
// every exchange of parameters needs; add the kernels of ops::exchange_kernels to its ops::on
bool const legal = check_policies<drawer_world, spline, optim::sgd>();
