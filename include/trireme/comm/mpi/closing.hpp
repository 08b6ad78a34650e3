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

/// The end of a group on this rank, which has left it, or in which a call has failed. A communicator may be freed only
/// when no message can come in it any more: MPI gives its number to the next one, where a message that is late is then
/// taken for one of another group. So each rank takes all that still comes to it, and drops it. When MPI is done with
/// all that this rank has begun, it says so in rounds as those of a barrier, but to both sides, so that a rank is also
/// past every notice that its neighbours have sent. After the last round that holds for all ranks: no memory is used
/// any more.
///
/// The rounds carry whether a call has failed on any rank. Then messages may still be on their way, and all ranks keep
/// the communicator; otherwise all of them free it.
///
/// A rank that has not left yet, has not heard of the failure, or has died, keeps the others from it; so nobody waits
/// for this without a limit, and whoever has more time later (another call, MPI_Finalize) goes on with it. After a
/// failure that matters more: a message that is under way can often not be cancelled. It ends when its receiver takes
/// it, and MPI_Finalize of some MPIs waits for that.
class mpi_closing {
 public:
  /// @param notices  of the group's family: hears what comes about who ends and who reports.
  /// @param failed   whether a call of the family has failed; otherwise this rank has left the group.
  mpi_closing(mpi_group const& group, std::shared_ptr<mpi_notices> notices, bool failed)
      : notices_(std::move(notices)),
        handle_(group.handle),
        members_(group.members),
        rank_(group.rank),
        rounds_(rounds_among(group.size)),
        failed_here_(failed),
        failed_(failed),
        heard_(static_cast<std::size_t>(rounds_) + 1) {}

  /// The communicator whose messages it takes.
  [[nodiscard]] MPI_Comm handle() const noexcept { return handle_; }
  /// Whether a call of the group has failed on this rank.
  [[nodiscard]] bool has_failed_here() const noexcept { return failed_here_; }
  /// Once it is over: whether no rank will use the communicator again, and nothing is on its way in it.
  [[nodiscard]] bool is_to_free() const noexcept { return !failed_; }
  /// Makes the progress that is possible now; whether it is over. `quiet()` says whether MPI is done with the
  /// operations of this rank.
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
    while (round_ <= rounds_ && heard_[static_cast<std::size_t>(round_)] >= 2) next_round();
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
  void hear(char round, char failed) {
    failed_ = failed_ || failed != '\0';
    if (round > 0 && round <= rounds_) ++heard_[static_cast<std::size_t>(round)];
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
      hear(static_cast<char>(coming_.back()[0]), static_cast<char>(coming_.back()[1]));
    }
  }

  std::shared_ptr<mpi_notices> notices_;
  MPI_Comm handle_;
  std::vector<int> members_;
  int rank_;
  int rounds_;
  bool failed_here_;
  bool failed_;             // here or on another rank
  int round_ = 0;           // 0: something is in flight; above rounds_: over
  std::vector<int> heard_;  // how many messages of each round: two end it
  std::vector<MPI_Request> requests_;
  std::vector<std::unique_ptr<std::byte[]>> coming_;
};

}  // namespace trireme::comm::detail
