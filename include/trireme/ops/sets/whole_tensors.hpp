#pragma once

#include "trireme/ops/sets/dense.hpp"
#include "trireme/ops/sets/update.hpp"
#include "trireme/ops/whole_tensors.hpp"

namespace trireme::ops {

// The set of updates of whole tensors, in a struct whole_tensors_on<Space> of its own; each optimizer needs its own
// kernels only. Documented in ops/whole_tensors.hpp.
//
// Of on<Space> also copy_blocks, for tensors that lie side by side in a parameter.
//
//   lamb(value, first, second, gradient, lamb_numbers)
//   adafactor(value, direction, column_sums, row_means, column_means, second, first, gradient, adafactor_numbers)
//   muon_momentum(velocity, direction, gradient, momentum, scale, nesterov)     muon_normalise(x)
//   muon_mix(y, x, of_x, of_y)                                                  muon_step(value, direction, keep, by)

namespace detail {

template <class Space, class Env>
struct whole_tensor_views {
  using value = tensor_view<typename Env::master, Space>;
  using gradient = tensor_view<typename Env::gradient const, Space>;
  using sums = tensor_view<double, Space>;
};
template <class K, class V>
concept takes_tensors_out = requires(typename V::value value, block_places const& at, block_extents const& extents) {
  K::copy_blocks(value, at, value, at, extents);
};
template <class K, class V>
concept updates_lamb = requires(typename V::value value, typename V::gradient gradient, lamb_numbers const& numbers) {
  K::lamb(value, value, value, gradient, numbers);
};
template <class K, class V>
concept updates_adafactor = requires(typename V::value value, typename V::gradient gradient, typename V::sums sums,
                                     adafactor_numbers const& numbers) {
  K::adafactor(value, value, sums, value, value, value, value, gradient, numbers);
};
template <class K, class V>
concept updates_muon = requires(typename V::value value, typename V::gradient gradient) {
  K::muon_momentum(value, value, gradient, 0.9, 1.0, true);
  K::muon_normalise(value);
  K::muon_mix(value, value, 1.0, 1.0);
  K::muon_step(value, value, 1.0, 0.1);
};

}  // namespace detail

/// Whether a memory space has the kernel of optim::lamb.
template <class Space, class Env>
concept lamb_kernels = complete_kernels<Space> ||
    (detail::takes_tensors_out<on<Space>, detail::whole_tensor_views<Space, Env>>&&
         detail::updates_lamb<whole_tensors_on<Space>, detail::whole_tensor_views<Space, Env>>);
/// Whether a memory space has the kernel of optim::adafactor.
template <class Space, class Env>
concept adafactor_kernels = complete_kernels<Space> ||
    (detail::takes_tensors_out<on<Space>, detail::whole_tensor_views<Space, Env>>&&
         detail::updates_adafactor<whole_tensors_on<Space>, detail::whole_tensor_views<Space, Env>>);
/// Whether a memory space has the kernels of optim::muon: its own, products, and adamw for the other parameters.
template <class Space, class Env>
concept muon_kernels = complete_kernels<Space> ||
    (dense_kernels<Space, Env>&& adamw_kernels<Space, Env>&&
         detail::updates_muon<whole_tensors_on<Space>, detail::whole_tensor_views<Space, Env>>);

}  // namespace trireme::ops
