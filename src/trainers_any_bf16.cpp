// Exchange and trainer in bfloat16 with float master weights, of ranks that are processes, or of any communicator that
// is lent.
#include "trireme/trireme.hpp"

namespace trireme {
TRIREME_TRAINERS(template, precision::bf16, comm::any_world)
}  // namespace trireme
