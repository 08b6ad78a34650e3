#pragma once

#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/interop/detail/torch_module.hpp"

namespace trireme::interop {

namespace detail {

/// Collective. Copies the values of `root`'s tensors to every rank; all ranks have tensors of the same names and
/// shapes.
template <class Comm>
void broadcast_equal(std::vector<named_tensor> const& parameters, std::vector<named_tensor> const& buffers, Comm& world,
                     int root) {
  using space = typename space_of<Comm>::type;
  expect_equal_tensors(parameters, buffers, world);
  [[maybe_unused]] typename torch_space<space>::in_order const order;
  for (auto const& each : parameters) {
    if (each.tensor.nbytes() > 0) world.broadcast(bytes_of<space>(each.tensor), root);
  }
  shared_tensors<space>(buffers).broadcast(world, root);
}

}  // namespace detail

/// Collective. Gives every rank the parameters and buffers of `root`.
/// Errors  config_error on every rank if the modules differ in names, shapes, types, or what is trained.
template <detail::some_module Module, class Comm>
void broadcast(Module const& module, Comm& world, int root = 0) {
  using space = typename space_of<Comm>::type;
  auto const held = detail::lent_module(module);
  detail::broadcast_equal(detail::parameters_of<space>(*held, detail::memory_format::dense),
                          detail::buffers_of<space>(*held, detail::memory_format::dense), world, root);
}

}  // namespace trireme::interop
