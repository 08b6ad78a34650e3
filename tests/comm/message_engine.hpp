#pragma once

// The engine of MPI's messages, for tests of other rooms that run it on simulated machines.
#include "trireme/comm/mpi/engine.hpp"
