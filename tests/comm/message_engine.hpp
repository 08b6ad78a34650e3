#pragma once

// The engine of MPI's messages, for tests of other rooms that stand it on machines of their own choice.
#include "trireme/comm/mpi/engine.hpp"
