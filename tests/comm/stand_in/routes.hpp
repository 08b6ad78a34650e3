#pragma once

#include "../../gpu/nccl_cases.hpp"

namespace stand_in {

/// Exchanges along routes of comm::nccl.
void try_routes(gpu::cases& cases);

}  // namespace stand_in
