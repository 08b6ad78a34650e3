#include "hasty.hpp"

using namespace trireme;

// expected-error: trireme::schedule: each chunk must take each of its micro-batches backward exactly once: a full
// backward, or backward_input and backward_weight [backward_once]
static_assert(schedule::check<hasty<0, 1>, 4, 8>());
