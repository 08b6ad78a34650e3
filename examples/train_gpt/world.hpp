#pragma once

// The ranks of a run. All of the program but world.cpp is compiled once, for any communicator; world.cpp is compiled
// for train_gpt, whose ranks are threads, and with MPI for train_gpt_mpi, whose ranks are processes that mpirun or
// torchrun starts.
#include <chrono>
#include <functional>
#include <string_view>

#include "trireme/trireme.hpp"

/// What the summary calls them: "threads", or "mpi".
[[nodiscard]] std::string_view ranks_are();

struct rank_counts {
  int all, here;  // here: on this machine
};

/// How many ranks there will be, where `asked` threads are asked for. The launcher tells the number of processes.
[[nodiscard]] rank_counts ranks_to_come(int asked);

/// Runs `body(world, attempt)` on every rank, again after a failure as `again` says.
///
/// Errors   as trireme::launch.
/// @returns what the body returns on the first rank of this process.
int on_all_ranks(int asked, std::chrono::milliseconds deadline, trireme::comm::recovery const& again,
                 std::function<int(trireme::comm::any_world&, int)> const& body);
