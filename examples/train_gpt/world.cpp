#include "world.hpp"

#include <algorithm>

#ifdef TRAIN_GPT_MPI
#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/mpi.hpp"
#else
#include "trireme/comm/lend.hpp"
#endif

using namespace trireme;

#ifdef TRAIN_GPT_MPI

std::string_view ranks_are() { return "mpi"; }

rank_counts ranks_to_come(int) {
  auto const found = comm::bootstrap::detect();
  return {std::max(found.size, 1), std::max(found.local_size, 1)};
}

int on_all_ranks(int, std::chrono::milliseconds deadline, comm::recovery const& again,
                 std::function<int(comm::any_world&, int)> const& body) {
  return launch(comm::mpi{.deadline = deadline}, again, body);
}

#else

std::string_view ranks_are() { return "threads"; }

rank_counts ranks_to_come(int asked) { return {asked, asked}; }

int on_all_ranks(int asked, std::chrono::milliseconds deadline, comm::recovery const& again,
                 std::function<int(comm::any_world&, int)> const& body) {
  return launch(comm::threads{.ranks = asked, .deadline = deadline}, again,
                [&](comm::threads_world& world, int attempt) {
                  auto lent = comm::lend(world);
                  return body(lent, attempt);
                });
}

#endif
