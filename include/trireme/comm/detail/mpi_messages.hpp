#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "trireme/comm/command.hpp"
#include "trireme/comm/detail/mpi_session.hpp"

namespace trireme::comm::detail {

inline constexpr std::string_view mpi_name = "trireme::comm::mpi";

/// A duplicate of an MPI communicator; nobody else's messages travel in it.
///
/// Tags: 0 announces a failure; 1 and 2 are exchanges, which need no number, because messages of one tag do not
/// overtake each other. Collective number k uses 3 + 3 * (k mod window), and the two tags after it.
struct mpi_group {
  MPI_Comm handle = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::uint64_t next = 1;           // collective
  std::uint64_t next_exchange = 1;  // of this rank's own
  std::uint64_t window = 1;
  std::chrono::milliseconds deadline{};

  [[nodiscard]] int tag_of(std::uint64_t number) const noexcept { return 3 + 3 * static_cast<int>(number % window); }
};

/// What all messages of one operation have in common.
struct mpi_route {
  mpi_group const* group = nullptr;
  call what;
  std::uint64_t number = 0;
  int tag = 0;

  void check(int code) const {
    if (code != MPI_SUCCESS)
      throw comm_error(text(mpi_name, ": ", to_string(what), " number ", number, " failed: ", mpi_sentence(code)));
  }
};

/// Messages in flight that are waited for together.
class mpi_messages {
 public:
  void send(mpi_route const& route, void const* values, std::size_t size, int peer, int tag) {
    transfer(size, [&](std::size_t offset, int bytes) {
      route.check(MPI_Isend(static_cast<std::byte const*>(values) + offset, bytes, MPI_BYTE, peer, tag,
                            route.group->handle, next(peer, false)));
    });
  }
  void receive(mpi_route const& route, void* values, std::size_t size, int peer, int tag) {
    transfer(size, [&](std::size_t offset, int bytes) {
      route.check(MPI_Irecv(static_cast<std::byte*>(values) + offset, bytes, MPI_BYTE, peer, tag, route.group->handle,
                            next(peer, true)));
    });
  }
  /// Whether all are done; then it is empty again.
  [[nodiscard]] bool done(mpi_route const& route) {
    if (requests_.empty()) return true;
    int flag = 0;
    route.check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &flag, MPI_STATUSES_IGNORE));
    if (flag != 0) clear();
    return flag != 0;
  }
  void clear() noexcept {
    requests_.clear();
    ends_.clear();
  }
  /// Appends the peers whose messages are missing.
  void append_late(std::vector<int>& peers, bool receiving) const {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      int flag = 1;
      if (requests_[i] != MPI_REQUEST_NULL && ends_[i].receiving == receiving)
        MPI_Request_get_status(requests_[i], &flag, MPI_STATUS_IGNORE);
      if (flag == 0) peers.push_back(ends_[i].peer);
    }
  }
  /// After a failure: MPI must not write to what it has not begun to write to.
  void cancel() noexcept {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL && ends_[i].receiving) MPI_Cancel(&requests_[i]);
  }

 private:
  struct end {
    int peer;
    bool receiving;
  };
  static constexpr std::size_t largest = std::size_t{1} << 30;  // MPI counts in int

  template <class Part>
  static void transfer(std::size_t size, Part part) {
    std::size_t offset = 0;
    do {
      auto const now = std::min(size - offset, largest);
      part(offset, static_cast<int>(now));
      offset += now;
    } while (offset < size);
  }
  [[nodiscard]] MPI_Request* next(int peer, bool receiving) {
    ends_.push_back({peer, receiving});
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }

  std::vector<MPI_Request> requests_;
  std::vector<end> ends_;
};

/// Bytes that keep their place; not initialised, and never fewer than before.
class mpi_buffer {
 public:
  [[nodiscard]] std::byte* at_least(std::size_t bytes) {
    if (bytes > size_) {
      data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_ = bytes;
    }
    return data_.get();
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

}  // namespace trireme::comm::detail
