// Layers, engine, exchange and trainer in bfloat16 with float master weights.
#include "trireme/trireme.hpp"

namespace trireme {
TRIREME_TRAINERS(template, precision::bf16)
}  // namespace trireme
