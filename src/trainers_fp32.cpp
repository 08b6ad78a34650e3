// Layers, engine, exchange and trainer in float.
#include "trireme/trireme.hpp"

namespace trireme {
TRIREME_TRAINERS(template, precision::fp32)
TRIREME_EXCHANGES(template, precision::fp32)
}  // namespace trireme
