// Exchange and trainer in bfloat16 with float master weights, for ranks that are processes, or any lent communicator.
#include "trireme/trireme.hpp"

namespace trireme {
TRIREME_ALL_GRADIENTS(template, precision::bf16, comm::any_world)
TRIREME_TRAINERS(template, precision::bf16, comm::any_world)
}  // namespace trireme
