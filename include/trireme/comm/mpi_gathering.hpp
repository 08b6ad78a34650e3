#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/gathering.hpp"
#include "trireme/comm/mpi.hpp"
#include "trireme/comm/mpi/session.hpp"

namespace trireme::comm {

namespace detail {

[[nodiscard]] inline std::vector<std::string> all_gather_text(mpi_world& world, std::string const& own) {
  auto const ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> sizes(ranks);
  sizes[static_cast<std::size_t>(world.rank())] = static_cast<std::int64_t>(own.size());
  world.all_gather(tensor_view{sizes});
  std::vector<std::uint8_t> letters(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), 0LL)));
  auto const first = std::accumulate(sizes.begin(), sizes.begin() + world.rank(), std::int64_t{0});
  std::copy(own.begin(), own.end(), letters.begin() + first);
  world.all_gather(tensor_view{letters}, sizes);
  std::vector<std::string> all;
  auto at = letters.begin();
  for (auto const size : sizes) {
    all.emplace_back(at, at + size);
    at += size;
  }
  return all;
}

[[nodiscard]] inline gathering gather_by_mpi(meeting_method::request const& it) {
  mpi_session::instance().begin();
  auto const world = std::make_shared<mpi_world>(mpi::borrow(MPI_COMM_WORLD, it.deadline));
  auto const watch = std::make_shared<mpi_world>(world->duplicate(std::chrono::seconds(2)));
  gathering out{world->rank(), world->size()};
  auto const here = bootstrap::detect();
  if (here.started_by == bootstrap::launcher::single || here.size != out.size) {
    MPI_Comm machine = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, out.rank, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &out.local_rank);
    MPI_Comm_free(&machine);
  } else {
    out.local_rank = here.local_rank;
  }
  out.all_gather = [world](std::string const& own) { return all_gather_text(*world, own); };
  out.who_is_missing = [watch]() -> std::string {
    try {
      watch->barrier();
    } catch (comm_error const& problem) {
      return problem.what();
    }
    return {};
  };
  out.abandon = [world](std::string const& sentence) { world->abandon(sentence); };
  return out;
}

}  // namespace detail

/// Over MPI, which it initialises if nobody has.
inline constexpr meeting_method by_mpi{"comm::by_mpi", &detail::gather_by_mpi};

}  // namespace trireme::comm
