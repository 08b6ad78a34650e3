// Trireme 0.1.0: trireme/interop/torch_instances.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: fd6c93707f95b904faed6a459cb8a93d53452a90ecbe6ab2f0bc45f33882d475
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/interop/torch_data_parallel_steps.hpp"

// ---- trireme/interop/torch_instances.hpp
// The instances in the library trireme::compiled_torch: the steps of interop::data_parallel in float, for
// parallel::data without a compressor, for threads as ranks and for processes as ranks. All others are compiled in the
// program that uses them, from the same headers. train/exchange_instances.hpp is not included here: it makes the
// compiler read 48 types completely, of which these programs use none by themselves.

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
