#include "hasty.hpp"

using namespace trireme;

// expected-error: trireme::schedule: stages wait for each other for ever, even if sends are buffered [no_deadlock]
static_assert(schedule::check<hasty<1>, 4, 8>());
