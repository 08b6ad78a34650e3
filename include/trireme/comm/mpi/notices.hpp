#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "trireme/comm/detail/roll_call.hpp"
#include "trireme/comm/mpi/messages.hpp"
#include "trireme/comm/mpi/outbox.hpp"

namespace trireme::comm::detail {

/// Messages about a failure.
///
/// A failure is flooded: a rank that detects it or receives a notice of it sends it to its 2 ceil(log2(size))
/// neighbours in each group, once. So the number of messages per rank does not depend on how many ranks detect the
/// failure, and notices reach ranks whose other neighbours are dead or busy. If no neighbour sends one, the rank's own
/// deadline ends its wait.
class mpi_notices {
 public:
  static constexpr std::size_t most_bytes = 1024;
  struct notice {
    std::string sentence;
    int from = 0;  ///< as the group's communicator numbers ranks
  };

  /// Sends the first failure to the neighbours in each group, except `received_from`, from which it came. Later ones:
  /// nothing.
  void send_failure(std::span<mpi_group* const> groups, std::string_view sentence, int received_from = -1) noexcept {
    if (has_sent_) return;
    has_sent_ = true;
    for (auto const* group : groups)
      roll_call::for_each_neighbour(group->rank, group->size, [&](int peer) {
        if (member(*group, peer) != received_from)
          send(*group, peer, mpi_tags::failure, sentence.substr(0, most_bytes));
      });
  }
  /// The failure that another rank of the group has sent, if any.
  [[nodiscard]] std::optional<notice> receive_failure(mpi_group const& group) {
    char sentence[most_bytes];
    int bytes = 0;
    int const from = take(group, mpi_tags::failure, sentence, most_bytes, bytes);
    if (from < 0) return std::nullopt;
    return notice{std::string(sentence, static_cast<std::size_t>(bytes)), from};
  }

  /// Tells the neighbours that this rank has left the group, and will make no further calls in it.
  static void send_departure(mpi_group const& group) noexcept {
    char number[sizeof group.next];
    std::memcpy(number, &group.next, sizeof number);
    roll_call::for_each_neighbour(group.rank, group.size, [&](int peer) {
      send(group, peer, mpi_tags::leaves, {number, sizeof number});
    });
  }
  /// Notes in the group which neighbours have left it.
  void receive_departures(mpi_group& group) noexcept {
    char bytes_of[sizeof group.next];
    int bytes = 0;
    for (int from = 0; (from = take(group, mpi_tags::leaves, bytes_of, sizeof bytes_of, bytes)) >= 0;) {
      std::uint64_t number = 0;
      if (bytes != sizeof number) continue;
      std::memcpy(&number, bytes_of, sizeof number);
      if (number < group.without_all) group.without_all = number, group.has_left = from;
    }
  }

  // Which rank prints the error.

  /// Tells the neighbours of higher rank that this rank ends with an error, and so may print it.
  static void send_end(mpi_group const& launch) noexcept {
    roll_call::for_each_neighbour(launch.rank, launch.size, [&](int peer) {
      if (peer > launch.rank) send(launch, peer, mpi_tags::ends, {});
    });
  }
  /// Tells all other ranks that this one prints the error: directly, because its process ends soon, before others could
  /// pass it on. Usually one rank of a launch prints; two may, if they fail at once and no rank between them listens.
  static void send_report(mpi_group const& launch) noexcept {
    for (int rank = 0; rank < launch.size; ++rank)
      if (rank != launch.rank) send(launch, rank, mpi_tags::reports, {});
  }
  /// Receives the notices that have arrived.
  void receive_reports(mpi_group const& launch) noexcept {
    char sentence[most_bytes];
    for (int const tag : {mpi_tags::failure, mpi_tags::ends, mpi_tags::reports})
      for (int bytes = 0; take(launch, tag, sentence, most_bytes, bytes) >= 0;) {
      }
  }
  /// The lowest rank that has sent a failure, or that it ends.
  [[nodiscard]] int lowest_failed() const noexcept { return lowest_failed_; }
  [[nodiscard]] bool another_reports() const noexcept { return reported_; }

  /// Receives a message of at most `room` bytes that has arrived; returns its sender, or -1.
  [[nodiscard]] int take(mpi_group const& group, int tag, char* to, std::size_t room, int& bytes) noexcept {
    int flag = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, tag, group.handle, &flag, &status) != MPI_SUCCESS || flag == 0) return -1;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    int const from = status.MPI_SOURCE;
    // No notice is longer: such a message is received, so that it does not block others, and ignored.
    bool const fits = bytes >= 0 && static_cast<std::size_t>(bytes) <= room;
    bytes = std::min(std::max(bytes, 0), static_cast<int>(room));
    MPI_Recv(to, bytes, MPI_BYTE, from, tag, group.handle, MPI_STATUS_IGNORE);
    if (!fits) return -1;
    note(tag, from);
    return from;
  }
  /// Notes the sender of a message that was received elsewhere.
  void note(int tag, int from) noexcept {
    if (tag <= mpi_tags::reports) lowest_failed_ = std::min(lowest_failed_, from);
    if (tag == mpi_tags::reports) reported_ = true;
  }

 private:
  [[nodiscard]] static int member(mpi_group const& group, int rank) noexcept {
    return group.members[static_cast<std::size_t>(rank)];
  }
  static void send(mpi_group const& group, int peer, int tag, std::string_view what) noexcept {
    mpi_outbox::of_process().send(group.handle, member(group, peer), tag, what);
  }

  bool has_sent_ = false;
  bool reported_ = false;
  int lowest_failed_ = std::numeric_limits<int>::max();
};

}  // namespace trireme::comm::detail
