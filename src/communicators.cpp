// Ranks that are threads, and ranks that are processes of one machine.
#include "trireme/comm/processes.ipp"
#include "trireme/comm/threads.ipp"
#include "trireme/core/compiled.hpp"
#include "trireme/core/cores.ipp"

char const trireme::TRIREME_SAME_COMPILER = 0;
