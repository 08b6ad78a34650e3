#pragma once

#include <mpi.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "trireme/comm/detail/roll_call.hpp"
#include "trireme/comm/mpi/messages.hpp"

namespace trireme::comm::detail {

/// Messages about a failure.
///
/// A failure is flooded: a rank that finds it or hears of it tells its 2 ceil(log2(size)) neighbours in each group,
/// once. So a rank sends no more than that, however many ranks find the failure, and the notice goes around ranks that
/// are dead or compute. If all neighbours of a rank are silent, its own deadline ends its wait.
class mpi_notices {
 public:
  static constexpr std::size_t most_bytes = 1024;
  struct notice {
    std::string sentence;
    int from = 0;  ///< as the group's communicator numbers ranks
  };

  /// Tells the neighbours in each group, except `told_by`, which has told this rank. Only for the first failure.
  void tell(std::span<mpi_group* const> groups, std::string_view sentence, int told_by = -1) noexcept {
    if (has_told_) return;
    has_told_ = true;
    for (auto const* group : groups)
      roll_call::for_each_neighbour(group->rank, group->size, [&](int peer) {
        if (member(*group, peer) != told_by) send(*group, peer, mpi_tags::failure, sentence.substr(0, most_bytes));
      });
  }
  /// The failure of which another rank of the group has told, if any.
  [[nodiscard]] std::optional<notice> heard(mpi_group const& group) {
    char sentence[most_bytes];
    int bytes = 0;
    int const from = take(group, mpi_tags::failure, sentence, most_bytes, bytes);
    if (from < 0) return std::nullopt;
    return notice{std::string(sentence, static_cast<std::size_t>(bytes)), from};
  }

  // Which rank prints the error.

  /// Tells the neighbours of higher rank that this rank ends with an error, and so may print it.
  static void tell_that_it_ends(mpi_group const& launch) noexcept {
    roll_call::for_each_neighbour(launch.rank, launch.size, [&](int peer) {
      if (peer > launch.rank) send(launch, peer, mpi_tags::ends, {});
    });
  }
  /// Tells all other ranks that this one prints the error: directly, because its process ends soon, before others could
  /// pass it on. Usually one rank of a launch prints; two may, if they fail at once and no rank between them listens.
  static void tell_that_it_reports(mpi_group const& launch) noexcept {
    for (int rank = 0; rank < launch.size; ++rank)
      if (rank != launch.rank) send(launch, rank, mpi_tags::reports, {});
  }
  /// Receives the notices that have arrived.
  void hear_who_reports(mpi_group const& launch) noexcept {
    char sentence[most_bytes];
    for (int const tag : {mpi_tags::failure, mpi_tags::ends, mpi_tags::reports})
      for (int bytes = 0, from = 0; (from = take(launch, tag, sentence, most_bytes, bytes)) >= 0;) {
        if (tag == mpi_tags::reports) reported_ = true;
      }
  }
  /// The lowest rank that has told of a failure, or that it ends.
  [[nodiscard]] int told_by() const noexcept { return told_by_; }
  [[nodiscard]] bool another_reports() const noexcept { return reported_; }

  /// Receives a message of at most `room` bytes that has arrived; returns its sender, or -1.
  [[nodiscard]] int take(mpi_group const& group, int tag, char* to, std::size_t room, int& bytes) noexcept {
    int flag = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, tag, group.handle, &flag, &status) != MPI_SUCCESS || flag == 0) return -1;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (bytes < 0 || static_cast<std::size_t>(bytes) > room) return -1;
    int const from = status.MPI_SOURCE;
    MPI_Recv(to, bytes, MPI_BYTE, from, tag, group.handle, MPI_STATUS_IGNORE);
    if (tag != mpi_tags::roll) told_by_ = std::min(told_by_, from);
    return from;
  }

 private:
  [[nodiscard]] static int member(mpi_group const& group, int rank) noexcept {
    return group.members[static_cast<std::size_t>(rank)];
  }
  /// Does not wait until it arrives: MPI copies a message so small, or the process ends with the failure.
  static void send(mpi_group const& group, int peer, int tag, std::string_view what) noexcept {
    MPI_Request request = MPI_REQUEST_NULL;
    int flag = 0;
    MPI_Isend(what.data(), static_cast<int>(what.size()), MPI_BYTE, member(group, peer), tag, group.handle, &request);
    if (request != MPI_REQUEST_NULL) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
  }

  bool has_told_ = false;
  bool reported_ = false;
  int told_by_ = std::numeric_limits<int>::max();
};

}  // namespace trireme::comm::detail
