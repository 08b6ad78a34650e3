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

/// The end of a group that has failed. A message that is under way then can often not be cancelled: it ends when its
/// receiver takes it, and MPI_Finalize of some MPIs waits for that. So each rank takes all that still comes to it, and
/// drops it. When MPI is done with all that this rank has begun, it says so in rounds as those of a barrier. After the
/// last round that holds for all ranks: no memory is used any more.
///
/// A rank that has not heard of the failure yet, or has died, keeps the others from it; so nobody waits for this
/// without a limit, and whoever has more time later (another call, MPI_Finalize) goes on with it.
class mpi_closing {
 public:
  /// @param notices  of the group's family: hears what comes about who ends and who reports.
  mpi_closing(mpi_group const& group, std::shared_ptr<mpi_notices> notices)
      : notices_(std::move(notices)),
        handle_(group.handle),
        members_(group.members),
        rank_(group.rank),
        rounds_(rounds_among(group.size)),
        heard_(group.members.size()) {}

  /// The communicator whose messages it takes.
  [[nodiscard]] MPI_Comm handle() const noexcept { return handle_; }
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
    while (round_ <= rounds_ && heard_[at(rank_ - hop())]) next_round();
    return round_ > rounds_ && requests_.empty();
  }

 private:
  [[nodiscard]] int hop() const noexcept { return 1 << (round_ - 1); }
  [[nodiscard]] std::size_t at(int number) const noexcept {
    auto const size = static_cast<int>(members_.size());
    return static_cast<std::size_t>((number + size) % size);
  }
  void next_round() {
    if (++round_ <= rounds_) mpi_outbox::of_process().send(handle_, members_[at(rank_ + hop())], mpi_tags::closes, {});
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
      if (status.MPI_TAG != mpi_tags::closes) continue;
      for (std::size_t each = 0; each < members_.size(); ++each)
        if (members_[each] == status.MPI_SOURCE) heard_[each] = true;
    }
  }

  std::shared_ptr<mpi_notices> notices_;
  MPI_Comm handle_;
  std::vector<int> members_;
  int rank_;
  int rounds_;
  int round_ = 0;            // 0: something is in flight; above rounds_: over
  std::vector<bool> heard_;  // from whom, each in one round
  std::vector<MPI_Request> requests_;
  std::vector<std::unique_ptr<std::byte[]>> coming_;
};

}  // namespace trireme::comm::detail
