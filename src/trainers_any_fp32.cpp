// Exchange and trainer in float, of ranks that are processes, or of any communicator that is lent.
#include "trireme/trireme.hpp"

namespace trireme {
TRIREME_TRAINERS(template, precision::fp32, comm::any_world)
TRIREME_EXCHANGES(template, precision::fp32, comm::any_world)
}  // namespace trireme
