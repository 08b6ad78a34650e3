// Trireme 0.1.0: trireme/interop/torch_instances.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: bed2ce3b214116a8b7bb28d39652c0ffaf3322c30a18549535059183bd74ae6d
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/interop/torch_data_parallel_steps.hpp"

// ---- trireme/interop/torch_instances.hpp
// The instances in the library trireme::compiled_torch: the steps of interop::data_parallel in float, for
// parallel::data without a compressor, for threads as ranks and for processes as ranks. All others are compiled in the
// program that uses them, from the same headers.

namespace trireme::interop::detail {

/// The exchange of data_parallel(module, world).
template <class Comm>
using default_exchange =
    trireme::detail::exchange_type<trireme::detail::resolve_exchange<float, Comm>, Comm, typename space_of<Comm>::type>;

}  // namespace trireme::interop::detail

#ifdef TRIREME_COMPILED_TORCH
namespace trireme::interop {
extern template class data_parallel_steps<float, comm::threads_world, detail::default_exchange<comm::threads_world>>;
extern template class data_parallel_steps<float, comm::any_world, detail::default_exchange<comm::any_world>>;
}  // namespace trireme::interop
#endif
