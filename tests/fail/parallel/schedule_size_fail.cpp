#include "trireme/parallel/schedules/schedules.hpp"

using namespace trireme;

// expected-error: trireme::schedule: this schedule does not support these numbers of stages, micro-batches or chunks
static_assert(schedule::check<schedule::dual_pipe, 5, 20>());
