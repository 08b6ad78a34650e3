#pragma once

#include <mpi.h>

#include "trireme/comm/mpi/session.hpp"

namespace trireme::comm::detail {

/// While it lives, errors in calls on `of` come back as codes, whatever handler the program has set: the usual one ends
/// the job.
class returned_errors {
 public:
  explicit returned_errors(MPI_Comm of) : of_(of) {
    MPI_Comm_get_errhandler(of_, &before_);
    MPI_Comm_set_errhandler(of_, MPI_ERRORS_RETURN);
  }
  returned_errors(returned_errors const&) = delete;
  returned_errors& operator=(returned_errors const&) = delete;
  ~returned_errors() {
    MPI_Comm_set_errhandler(of_, before_);
    MPI_Errhandler_free(&before_);
  }

 private:
  MPI_Comm of_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

/// Errors  config_error if ranks cannot be made of `theirs`.
inline void check_communicator(MPI_Comm theirs) {
  if (theirs == MPI_COMM_NULL)
    throw config_error(
        "trireme::comm::mpi: borrow got MPI_COMM_NULL, which processes get that are not in a communicator, or have "
        "freed it; call borrow only on its members, before MPI_Comm_free");
  // MPI reports what is wrong with a handle on one of these: MPI 3 on the first, MPI 4 on the second.
  returned_errors const on_world(MPI_COMM_WORLD), on_self(MPI_COMM_SELF);
  int between_two = 0;
  auto const code = MPI_Comm_test_inter(theirs, &between_two);
  if (code != MPI_SUCCESS)
    throw config_error(text("trireme::comm::mpi: borrow got a communicator that has been freed (", mpi_sentence(code),
                            "); call it before MPI_Comm_free"));
  if (between_two != 0)
    throw config_error(
        "trireme::comm::mpi: borrow got an intercommunicator, whose two groups of ranks are numbered apart; make one "
        "group of them with MPI_Intercomm_merge, and lend that");
}

}  // namespace trireme::comm::detail
