#pragma once

// Everything that needs no optional dependency. MPI is apart: "trireme/comm/mpi.hpp".

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/version.hpp"
