// Trireme 0.1.0: trireme/comm/mpi_gathering.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: aaa9e4f51188fd046aa323d39c86d447201e7e5d5af9235ea609115ecf9bb265
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/gathering.hpp"
#include "trireme/comm/mpi.hpp"

// ---- trireme/comm/mpi_gathering.hpp
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

namespace trireme::comm {

namespace detail {

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
  out.all_gather = [world](std::string const& own) {
    return gather_texts(world->rank(), world->size(), own, [&](auto values, std::span<std::int64_t const> counts) {
      counts.empty() ? world->all_gather(values) : world->all_gather(values, counts);
    });
  };
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
