// Layers, engine, exchange and trainer in float, for ranks that are threads.
#include "trireme/trireme.hpp"

namespace trireme {
TRIREME_LAYERS(template, environment<precision::fp32>)
TRIREME_ALL_GRADIENTS(template, precision::fp32, comm::threads_world)
TRIREME_TRAINERS(template, precision::fp32, comm::threads_world)
TRIREME_EXCHANGES(template, precision::fp32, comm::threads_world)
}  // namespace trireme
