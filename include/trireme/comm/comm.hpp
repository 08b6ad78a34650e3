#pragma once

// The communicators within this process: self and threads. Separate are comm/processes.hpp, comm/mpi.hpp
// (needs MPI) and comm/nccl.hpp (needs NCCL).
#include "trireme/comm/in_space.hpp"
#include "trireme/comm/late.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/recovery.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/comm/traffic.hpp"
