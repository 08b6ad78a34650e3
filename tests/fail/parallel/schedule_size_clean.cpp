#include "trireme/parallel/schedules/schedules.hpp"

using namespace trireme;

static_assert(schedule::check<schedule::dual_pipe, 6, 20>());
