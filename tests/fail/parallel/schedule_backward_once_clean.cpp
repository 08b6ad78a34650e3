#include "hasty.hpp"

using namespace trireme;

static_assert(schedule::check<hasty<0, 0>, 4, 8>());
