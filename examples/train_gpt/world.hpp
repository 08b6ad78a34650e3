#pragma once

// The communicator of this build: threads, or for train_gpt_mpi processes that mpirun or torchrun starts.
#include <string_view>

#include "trireme/trireme.hpp"

#ifdef TRAIN_GPT_MPI
#include "trireme/comm/mpi.hpp"
using world_type = trireme::comm::mpi_world;
inline constexpr std::string_view world_name = "mpi";
#else
using world_type = trireme::comm::threads_world;
inline constexpr std::string_view world_name = "threads";
#endif
