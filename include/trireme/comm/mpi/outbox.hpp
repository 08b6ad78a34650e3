#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/mpi/messages.hpp"

namespace trireme::comm::detail {

/// Small messages whose sender waits for nobody. Each keeps its bytes until MPI is done with them, because not every
/// MPI copies small messages (MPICH over UCX does not).
class mpi_outbox {
 public:
  /// The only one of this process: messages outlive the world that they come from. Used with the driver's lock held.
  [[nodiscard]] static mpi_outbox& of_process() {
    static auto& only = *new mpi_outbox;
    return only;
  }

  /// Without memory for it the message is not sent.
  void send(MPI_Comm where, int peer, int tag, std::string_view bytes) noexcept try {
    auto& it = pending_.emplace_back();
    it.where = where;
    it.bytes = std::make_unique<std::string>(bytes);
    MPI_Isend(it.bytes->data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag, where, &it.request);
    if (is_done(it.request)) pending_.pop_back();
  } catch (...) {
  }
  /// Forgets what has been sent; whether nothing is left of what goes to ranks of `where`.
  bool sweep(MPI_Comm where = MPI_COMM_NULL) noexcept {
    std::erase_if(pending_, [](auto& each) { return is_done(each.request); });
    for (auto const& each : pending_)
      if (each.where == where) return false;
    return true;
  }
  [[nodiscard]] bool is_empty() const noexcept { return pending_.empty(); }

 private:
  struct pending_send {
    MPI_Comm where = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    std::unique_ptr<std::string> bytes;  // keeps its place when the list grows
  };
  std::vector<pending_send> pending_;
};

}  // namespace trireme::comm::detail
