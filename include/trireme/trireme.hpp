#pragma once

// Everything that needs no optional dependency. MPI is apart: "trireme/comm/mpi.hpp".

#include "trireme/comm/comm.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/data/data.hpp"
#include "trireme/nn/nn.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/train.hpp"
#include "trireme/version.hpp"
