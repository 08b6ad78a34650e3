// Ranks that are threads.
#include "trireme/comm/threads.ipp"
