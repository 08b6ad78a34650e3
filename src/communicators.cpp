// Ranks that are threads.
#include "trireme/comm/threads.ipp"
#include "trireme/core/cores.ipp"
