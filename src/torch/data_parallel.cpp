// The steps of interop::data_parallel. A library of its own (trireme::compiled_torch): it belongs to one LibTorch.
#include "trireme/interop/torch_instances.hpp"
#include "trireme/train/exchange_instances.hpp"

namespace trireme::interop {
template class data_parallel_steps<float, comm::threads_world, detail::default_exchange<comm::threads_world>>;
template class data_parallel_steps<float, comm::any_world, detail::default_exchange<comm::any_world>>;
}  // namespace trireme::interop
