#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/comm/detail/mpi_engine.hpp"
#include "trireme/comm/detail/thread_ranks.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/process_world.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

struct mpi;

/// One rank of comm::mpi.
using mpi_world = process_world<mpi>;

/// Ranks are the processes that mpirun has started.
///
/// Ranks    all of MPI_COMM_WORLD with launch; those of somebody's communicator with borrow().
/// Bytes    on one machine ranks meet by MPI and then work in shared memory, without MPI; between machines, or with
///          `.shared_memory = false`, MPI carries messages: an announcement of 24 bytes from each rank to each, and the
///          values, with it if they are under 16 KiB.
/// Threads  MPI_THREAD_SERIALIZED. While requests are in flight as messages a thread of ours is inside MPI: own MPI
///          calls need MPI_THREAD_MULTIPLE then. With none in flight, or in shared memory, MPI is the caller's alone.
/// Errors   launch and borrow throw config_error if MPI lacks MPI_THREAD_SERIALIZED, or is finalised. After an error
///          MPI is not finalised, so that mpirun ends the other ranks when this one ends.
struct mpi {
  using policy_category = slot::communicator;
  static constexpr std::string_view name = "mpi";

  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  bool shared_memory = true;  ///< whether ranks of one machine may meet in it

  /// A world on the ranks of `theirs`, which is duplicated (so: collective) and never freed. MPI must be initialised.
  [[nodiscard]] static mpi_world borrow(MPI_Comm theirs, std::chrono::milliseconds deadline = std::chrono::seconds(60),
                                        bool shared_memory = true);

  friend bool operator==(mpi const&, mpi const&) = default;
};

[[nodiscard]] inline std::string to_string(mpi const& it) {
  return text("comm::mpi{.deadline = ", to_string(it.deadline), it.shared_memory ? "}" : ", .shared_memory = false}");
}

inline mpi_world mpi::borrow(MPI_Comm theirs, std::chrono::milliseconds deadline, bool shared_memory) {
  if (deadline.count() < 1) throw config_error("trireme::comm::mpi: the deadline must be at least 1ms");
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun == 0)
    throw config_error(
        "trireme::comm::mpi: borrow needs an initialised MPI; call MPI_Init_thread first, or use launch");
  detail::mpi_session::instance().begin();
  auto driver = detail::mpi_driver::shared();
  MPI_Comm own = MPI_COMM_NULL;
  auto const code = driver->alone([&] { return MPI_Comm_dup(theirs, &own); });
  if (code != MPI_SUCCESS)
    throw comm_error(text("trireme::comm::mpi: duplicating the communicator failed: ", detail::mpi_sentence(code)));
  auto messages = std::make_shared<detail::message_engine>(std::move(driver), own, deadline);
  return mpi_world(std::move(messages));
}

/// How trireme::launch runs a body on comm::mpi: in this process, as the rank that it is.
template <class Body>
auto launch_ranks(mpi const& description, Body& body) {
  detail::mpi_session::instance().begin();
  auto world = mpi::borrow(MPI_COMM_WORLD, description.deadline, description.shared_memory);
  try {
    return std::invoke(body, world);
  } catch (...) {
    world.abandon(detail::sentence_of(std::current_exception()));
    throw;
  }
}

}  // namespace trireme::comm
