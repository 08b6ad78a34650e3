// Exchange and trainer in float, for ranks that are processes, or any lent communicator.
#include "trireme/trireme.hpp"

namespace trireme {
TRIREME_ALL_GRADIENTS(template, precision::fp32, comm::any_world)
TRIREME_TRAINERS(template, precision::fp32, comm::any_world)
TRIREME_EXCHANGES(template, precision::fp32, comm::any_world)
}  // namespace trireme
