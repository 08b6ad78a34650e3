#include "shelf.hpp"

using namespace trireme;

/// Memory with the kernels of another one.
struct drawer : shelf {};
template <>
struct trireme::ops::on<drawer> : on<shelf> {};
struct drawer_world : shelf_world {
  using space = drawer;
  drawer_world split(int color, int key);
  drawer_world duplicate();
};

bool const legal = check_policies<drawer_world, spline, optim::sgd>();
