// Layers, engine, exchange and trainer in bfloat16 with float master weights, for ranks that are threads.
#include "trireme/trireme.hpp"

namespace trireme {
TRIREME_LAYERS(template, environment<precision::bf16>)
TRIREME_ALL_GRADIENTS(template, precision::bf16, comm::threads_world)
TRIREME_TRAINERS(template, precision::bf16, comm::threads_world)
}  // namespace trireme
