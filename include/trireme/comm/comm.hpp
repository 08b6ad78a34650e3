#pragma once

// The communicators that need nothing but this process. comm/mpi.hpp is separate, because it needs MPI.
#include "trireme/comm/in_space.hpp"
#include "trireme/comm/late.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/recovery.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/comm/traffic.hpp"
