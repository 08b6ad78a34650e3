#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/comm/detail/rounds.hpp"
#include "trireme/comm/mpi/messages.hpp"
#include "trireme/comm/mpi/notices.hpp"
#include "trireme/comm/mpi/operation.hpp"

namespace trireme::comm::detail {

/// Closes a group on this rank, which has left it, or in which a call has failed. A communicator may be freed only when
/// no message can arrive in it any more: MPI gives its number to the next communicator, which would then receive a late
/// message of the old group. So each rank receives and drops whatever still arrives. When MPI is done with all requests
/// of this rank, the rank sends messages in rounds like those of a barrier, but to both sides, so that it has also
/// received every notice that its neighbours have sent. After the last round no rank uses any memory of the group.
///
/// The rounds carry whether a call has failed on any rank. If so, messages may still be in flight, and all ranks keep
/// the communicator; otherwise all of them free it.
///
/// A rank that has not left yet, has not received the failure, or has died, blocks the rounds. So no call waits for
/// them without a limit; later calls and MPI_Finalize go on with them. After a failure that is essential: a message in
/// flight can often not be cancelled. It ends when its receiver takes it, and in some MPIs MPI_Finalize waits for that.
class mpi_closing {
 public:
  /// @param notices  of the group's family; it notes arriving messages about ranks that end or report.
  /// @param failed   whether a call of the family has failed; if not, this rank has left the group.
  mpi_closing(mpi_group const& group, std::shared_ptr<mpi_notices> notices, bool failed)
      : notices_(std::move(notices)),
        handle_(group.handle),
        members_(group.members),
        rank_(group.rank),
        rounds_(rounds_among(group.size)),
        failed_here_(failed),
        failed_(failed),
        received_(static_cast<std::size_t>(rounds_) + 1) {}

  /// The communicator whose messages it takes.
  [[nodiscard]] MPI_Comm handle() const noexcept { return handle_; }
  /// Whether a call of the group has failed on this rank.
  [[nodiscard]] bool has_failed_here() const noexcept { return failed_here_; }
  /// When it is complete: whether no rank will use the communicator again, and no message is in flight in it.
  [[nodiscard]] bool is_to_free() const noexcept { return !failed_; }
  /// Makes the progress that is possible now; returns whether it is complete. `quiet()` returns whether MPI is done
  /// with the operations of this rank.
  template <class Quiet>
  bool advance(Quiet&& quiet) {
    drop_what_comes();
    bool const all_here = are_done(requests_);
    if (all_here) {
      coming_.clear();
      requests_.clear();
    }
    if (round_ == 0) {
      if (!all_here || !quiet()) return false;
      next_round();
    }
    while (round_ <= rounds_ && received_[static_cast<std::size_t>(round_)] >= 2) next_round();
    return round_ > rounds_ && requests_.empty() && mpi_outbox::of_process().sweep(handle_);
  }

 private:
  [[nodiscard]] int member(int number) const noexcept {
    auto const size = static_cast<int>(members_.size());
    return members_[static_cast<std::size_t>((number + size) % size)];
  }
  void next_round() {
    if (++round_ > rounds_) return;
    char const message[] = {static_cast<char>(round_), failed_ ? '\1' : '\0'};
    int const hop = 1 << (round_ - 1);
    for (int const to : {rank_ + hop, rank_ - hop})
      mpi_outbox::of_process().send(handle_, member(to), mpi_tags::closes, {message, sizeof message});
  }
  void count_message(char round, char failed) {
    failed_ = failed_ || failed != '\0';
    if (round > 0 && round <= rounds_) ++received_[static_cast<std::size_t>(round)];
  }
  void drop_what_comes() {
    for (;;) {
      int found = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, handle_, &found, &message, &status) != MPI_SUCCESS || found == 0)
        return;
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      coming_.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(std::max(bytes, 1))));
      requests_.push_back(MPI_REQUEST_NULL);
      MPI_Imrecv(coming_.back().get(), bytes, MPI_BYTE, &message, &requests_.back());
      notices_->note(status.MPI_TAG, status.MPI_SOURCE);
      if (status.MPI_TAG != mpi_tags::closes || bytes != 2) continue;
      MPI_Wait(&requests_.back(), MPI_STATUS_IGNORE);  // it is here already
      count_message(static_cast<char>(coming_.back()[0]), static_cast<char>(coming_.back()[1]));
    }
  }

  std::shared_ptr<mpi_notices> notices_;
  MPI_Comm handle_;
  std::vector<int> members_;
  int rank_;
  int rounds_;
  bool failed_here_;
  bool failed_;                // here or on another rank
  int round_ = 0;              // 0: requests of this rank are in flight; above rounds_: complete
  std::vector<int> received_;  // messages of each round; two complete it
  std::vector<MPI_Request> requests_;
  std::vector<std::unique_ptr<std::byte[]>> coming_;
};

}  // namespace trireme::comm::detail
