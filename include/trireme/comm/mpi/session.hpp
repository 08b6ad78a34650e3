#pragma once

#include <mpi.h>

#include <string>

#include "trireme/core/error.hpp"

namespace trireme::comm::detail {

/// This process's use of MPI as a whole.
///
/// Initialises it only if nobody has, and finalises only what it initialised: when the program ends, so that launch can
/// be called again, and never after a failure, because then mpirun must end the other ranks instead of waiting for
/// them.
class mpi_session {
 public:
  mpi_session(mpi_session const&) = delete;
  mpi_session& operator=(mpi_session const&) = delete;

  static mpi_session& instance() {
    static mpi_session only;
    return only;
  }

  /// Initialises MPI if nobody has; throws config_error if it is over, or lacks MPI_THREAD_SERIALIZED.
  void begin() {
    if (is_over())
      throw config_error("trireme::comm::mpi: MPI has been finalised already; finalise it after the last launch");
    int begun = 0;
    MPI_Initialized(&begun);
    int provided = MPI_THREAD_SINGLE;
    if (begun == 0) {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
      ours_ = true;
    } else {
      MPI_Query_thread(&provided);
    }
    if (provided < MPI_THREAD_SERIALIZED)
      throw config_error(
          begun == 0 ? "trireme::comm::mpi: this MPI offers less than MPI_THREAD_SERIALIZED; use one built with threads"
                     : "trireme::comm::mpi: MPI was initialised with less than MPI_THREAD_SERIALIZED; initialise it "
                       "with MPI_Init_thread(..., MPI_THREAD_SERIALIZED, ...)");
  }
  [[nodiscard]] static bool is_over() noexcept {
    int over = 0;
    MPI_Finalized(&over);
    return over != 0;
  }
  /// From here on MPI is not finalised: other ranks may never answer again.
  void abandon() noexcept { abandoned_ = true; }

 private:
  mpi_session() = default;
  ~mpi_session() {
    if (ours_ && !abandoned_ && !is_over()) MPI_Finalize();
  }
  bool ours_ = false;
  bool abandoned_ = false;
};

/// The sentence of an MPI error code.
[[nodiscard]] inline std::string mpi_sentence(int code) {
  char sentence[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, sentence, &length) != MPI_SUCCESS) return text("MPI error ", code);
  return {sentence, static_cast<std::size_t>(length)};
}

}  // namespace trireme::comm::detail
