#pragma once

#include <mpi.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>

#include "trireme/core/error.hpp"

namespace trireme::comm::detail {

/// This process's use of MPI as a whole.
///
/// Initialises MPI only if the program has not, and finalises it only if it has initialised it: when the program ends,
/// so that launch can be called again. After a failure it does not finalise MPI, so that mpirun ends the other ranks
/// instead of waiting for them.
class mpi_session {
 public:
  mpi_session(mpi_session const&) = delete;
  mpi_session& operator=(mpi_session const&) = delete;

  static mpi_session& instance() {
    static mpi_session only;
    return only;
  }

  /// Initialises MPI if the program has not. Throws config_error after MPI_Finalize, or if only another thread may
  /// call.
  void begin() {
    if (is_over())
      throw config_error(
          "trireme::comm::mpi: MPI has been finalised already; finalise it after the last launch or borrow");
    int begun = 0;
    MPI_Initialized(&begun);
    int provided = MPI_THREAD_SINGLE;
    if (begun == 0) {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
      ours_ = true;
    } else {
      MPI_Query_thread(&provided);
    }
    provided_ = provided;
    if (provided >= MPI_THREAD_SERIALIZED) return;
    int is_main = 0;
    MPI_Is_thread_main(&is_main);
    if (is_main == 0)
      throw config_error(text("trireme::comm::mpi: MPI was initialised with ", level(),
                              ", so that only the thread that did it may use this world; call from that thread, or "
                              "initialise MPI with MPI_Init_thread(..., MPI_THREAD_SERIALIZED, ...)"));
    only_caller_ = std::this_thread::get_id();
  }
  /// Whether a thread of the library may call MPI while the rank computes (adr/0025): with MPI_THREAD_MULTIPLE. With
  /// MPI_THREAD_SERIALIZED the program's own calls would have to wait for that thread, so only if the library has
  /// initialised MPI.
  [[nodiscard]] bool has_helper() const noexcept {
    return provided_ >= (ours_ ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE);
  }
  /// Whether this thread may call MPI at all.
  [[nodiscard]] bool may_call() const noexcept {
    return provided_ >= MPI_THREAD_SERIALIZED || only_caller_ == std::this_thread::get_id();
  }
  /// Whether several threads may, one at a time.
  [[nodiscard]] bool lets_threads_call() const noexcept { return provided_ >= MPI_THREAD_SERIALIZED; }
  /// What MPI provides.
  [[nodiscard]] std::string_view level() const noexcept {
    if (provided_ == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
    if (provided_ == MPI_THREAD_FUNNELED) return "MPI_THREAD_FUNNELED";
    return provided_ == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED" : "MPI_THREAD_MULTIPLE";
  }
  [[nodiscard]] static bool is_over() noexcept {
    int over = 0;
    MPI_Finalized(&over);
    return over != 0;
  }
  /// Whether this object is finalising MPI, because the program ends.
  [[nodiscard]] bool ends() const noexcept { return ends_; }
  /// From here on MPI is not finalised at the end, because other ranks may not respond any more.
  void abandon() noexcept { abandoned_ = true; }

 private:
  mpi_session() = default;
  ~mpi_session() {
    if (!ours_ || abandoned_ || is_over()) return;
    ends_ = true;
    MPI_Finalize();
  }
  std::atomic<bool> ours_{false};
  std::atomic<int> provided_{MPI_THREAD_SINGLE};
  std::thread::id only_caller_;  // below MPI_THREAD_SERIALIZED
  bool abandoned_ = false;
  bool ends_ = false;
};

/// The sentence of an MPI error code.
[[nodiscard]] inline std::string mpi_sentence(int code) {
  char sentence[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, sentence, &length) != MPI_SUCCESS) return text("MPI error ", code);
  return {sentence, static_cast<std::size_t>(length)};
}

}  // namespace trireme::comm::detail
