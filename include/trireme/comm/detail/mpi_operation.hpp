#pragma once

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/detail/call.hpp"
#include "trireme/comm/detail/combine.hpp"
#include "trireme/comm/detail/mpi_session.hpp"
#include "trireme/comm/detail/waiting.hpp"
#include "trireme/comm/traffic.hpp"

namespace trireme::comm::detail {

/// A duplicate of an MPI communicator; nobody else's messages travel in it.
///
/// Tags: 0 announces a failure. Collective number k uses 1 + 3 * (k mod window), and the two tags after it.
struct mpi_group {
  MPI_Comm handle = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::uint64_t next = 1;
  std::uint64_t window = 1;
  std::chrono::milliseconds deadline{};
};

/// Messages up to this size travel whole, in one step: latency decides. Larger ones are cut into slices.
inline constexpr std::size_t mpi_small_bytes = std::size_t{16} << 10;
/// The most that one MPI message carries: its count is an int.
inline constexpr std::size_t mpi_message_bytes = std::size_t{1} << 30;

/// Combines `count` elements of all ranks' terms into `out`.
using mpi_combine = void (*)(void* out, std::vector<std::byte const*> const& terms, std::int64_t count);

template <class T, class Op>
void combine_bytes(void* out, std::vector<std::byte const*> const& terms, std::int64_t count) {
  thread_local std::vector<T const*> typed;
  typed.clear();
  for (auto const* term : terms) typed.push_back(reinterpret_cast<T const*>(term));
  T* outputs[] = {static_cast<T*>(out)};
  combine<Op, T>(outputs, typed, count);
}

/// One rank's part in one collective, as stages of messages that never block:
/// announcements to and from all, with the values if they are few -> the slices -> the reduced slices.
class mpi_operation {
 public:
  call what;
  std::shared_ptr<mpi_group> where;
  std::uint64_t number = 0;
  std::byte const* from = nullptr;  // null in memory that cannot be touched
  std::byte* to = nullptr;
  std::size_t element_bytes = 1;
  mpi_combine combine = nullptr;
  std::atomic<bool> finished{false};

  /// Posts the first messages. Called, as all below, with the driver's lock held.
  void begin() {
    auto const p = static_cast<std::size_t>(where->size);
    // As many tags as fit are used in turn; few enough collectives are in flight that none is met again too early.
    base_tag_ = 1 + 3 * static_cast<int>(number % where->window);
    bool const touched = from != nullptr || what.count == 0;
    what.by_value = touched && bytes(what.count) <= mpi_small_bytes;
    heard_.clear();
    pieces_.clear();
    auto const capacity = sizeof(call) + mpi_small_bytes;
    if (received_.size() < p * capacity) received_.resize(p * capacity);
    if (sent_.size() < p * capacity) sent_.resize(p * capacity);
    for (int peer = 0; peer < where->size; ++peer) {
      auto* const out = sent_.data() + static_cast<std::size_t>(peer) * capacity;
      std::memcpy(out, &what, sizeof what);
      auto const part = what.by_value ? outgoing(peer) : slice{};
      if (part.count > 0) std::memcpy(out + sizeof what, from + bytes(part.first), bytes(part.count));
      if (peer == where->rank) continue;
      receive(heard_, received_.data() + static_cast<std::size_t>(peer) * capacity, capacity, peer, 0);
      send(heard_, out, sizeof what + bytes(part.count), peer, 0);
    }
    if (!what.by_value && touched) exchange_large();
    at_ = stage::announcing;
  }

  /// Makes the progress that is possible now; true if there was any. Throws comm_error.
  bool advance() {
    bool moved = false;
    if (at_ == stage::announcing && done(heard_)) {
      expect_agreement();
      at_ = stage::exchanging;
      moved = true;
    }
    if (at_ == stage::exchanging && done(pieces_)) {
      conclude();
      at_ = stage::spreading;
      moved = true;
    }
    if (at_ == stage::spreading && done(pieces_)) {
      finished.store(true, std::memory_order_release);
      moved = true;
    }
    return moved;
  }

  /// "rank 1, 3": the peers whose messages are missing.
  [[nodiscard]] std::string missing() {
    std::vector<int> late;
    for (auto* part : {&heard_, &pieces_})
      for (auto const receiving : {true, false}) {
        if (!late.empty() && (!receiving || part == &pieces_)) continue;
        for (std::size_t i = 0; i < part->requests.size(); ++i) {
          int flag = 1;
          if (part->requests[i] != MPI_REQUEST_NULL && part->receiving[i] == receiving)
            MPI_Request_get_status(part->requests[i], &flag, MPI_STATUS_IGNORE);
          if (flag == 0) late.push_back(part->peers[i]);
        }
      }
    std::ranges::sort(late);
    late.erase(std::unique(late.begin(), late.end()), late.end());
    std::string out = late.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < late.size(); ++i) out += text(i == 0 ? "" : ", ", late[i]);
    return late.empty() ? "the others" : out;
  }

 private:
  enum class stage : std::uint8_t { announcing, exchanging, spreading };
  struct messages {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
    std::vector<bool> receiving;
    void clear() {
      requests.clear();
      peers.clear();
      receiving.clear();
    }
  };

  [[nodiscard]] std::size_t bytes(std::int64_t count) const noexcept {
    return static_cast<std::size_t>(count) * element_bytes;
  }
  [[nodiscard]] slice equal_slice(int rank) const noexcept {
    auto const each = what.count / where->size;
    return {rank * each, each};
  }
  [[nodiscard]] slice cut(int rank) const noexcept { return slice_of(what.count, element_bytes, rank, where->size); }

  /// What this rank tells `peer` in the first step.
  [[nodiscard]] slice outgoing(int peer) const noexcept {
    switch (what.kind) {
      case collective::all_reduce:
        return what.by_value ? slice{0, what.count} : cut(peer);
      case collective::reduce_scatter:
      case collective::all_to_all:
        return equal_slice(peer);
      case collective::all_gather:
        return equal_slice(where->rank);
      case collective::broadcast:
        return where->rank == what.root ? slice{0, what.count} : slice{};
      default:
        return {};
    }
  }

  void check(int code) const {
    if (code != MPI_SUCCESS)
      throw comm_error(
          text("trireme::comm::mpi: ", to_string(what), " number ", number, " failed: ", mpi_sentence(code)),
          {where->rank, std::string(name_of(what.kind))});
  }
  void send(messages& part, std::byte const* values, std::size_t size, int peer, int tag) {
    do {
      auto const now = std::min(size, mpi_message_bytes);
      part.requests.push_back(MPI_REQUEST_NULL);
      part.peers.push_back(peer);
      part.receiving.push_back(false);
      check(MPI_Isend(values, static_cast<int>(now), MPI_BYTE, peer, base_tag_ + tag, where->handle,
                      &part.requests.back()));
      values += now;
      size -= now;
    } while (size > 0);
  }
  void receive(messages& part, std::byte* values, std::size_t size, int peer, int tag) {
    do {
      auto const now = std::min(size, mpi_message_bytes);
      part.requests.push_back(MPI_REQUEST_NULL);
      part.peers.push_back(peer);
      part.receiving.push_back(true);
      check(MPI_Irecv(values, static_cast<int>(now), MPI_BYTE, peer, base_tag_ + tag, where->handle,
                      &part.requests.back()));
      values += now;
      size -= now;
    } while (size > 0);
  }
  [[nodiscard]] bool done(messages& part) {
    if (part.requests.empty()) return true;
    int flag = 0;
    check(MPI_Testall(static_cast<int>(part.requests.size()), part.requests.data(), &flag, MPI_STATUSES_IGNORE));
    if (flag != 0) part.clear();
    return flag != 0;
  }

  void exchange_large() {
    bool const reduces = combine != nullptr;
    auto const mine = what.kind == collective::all_reduce ? cut(where->rank) : equal_slice(where->rank);
    if (reduces && slices_.size() < bytes(mine.count) * static_cast<std::size_t>(where->size))
      slices_.resize(bytes(mine.count) * static_cast<std::size_t>(where->size));
    // Each rank begins with its right-hand neighbour, so that not all send to rank 0 first.
    for (int step = 1; step < where->size; ++step) {
      int const source = (where->rank - step + where->size) % where->size;
      if (reduces) {
        if (mine.count > 0)
          receive(pieces_, slices_.data() + static_cast<std::size_t>(source) * bytes(mine.count), bytes(mine.count),
                  source, 1);
      } else if (what.kind != collective::broadcast || source == what.root) {
        auto const part = what.kind == collective::broadcast ? slice{0, what.count} : equal_slice(source);
        receive(pieces_, to + bytes(part.first), bytes(part.count), source, 1);
      }
      int const peer = (where->rank + step) % where->size;
      if (auto const part = outgoing(peer); part.count > 0)
        send(pieces_, from + bytes(part.first), bytes(part.count), peer, 1);
    }
    if (what.kind == collective::all_to_all)
      std::memcpy(to + bytes(mine.first), from + bytes(mine.first), bytes(mine.count));
  }

  void expect_agreement() const {
    if (!asserts(assertion_level::normal)) return;
    for (int peer = 0; peer < where->size; ++peer) {
      if (peer == where->rank) continue;
      call theirs;
      std::memcpy(&theirs, received_.data() + static_cast<std::size_t>(peer) * (sizeof(call) + mpi_small_bytes),
                  sizeof theirs);
      if (theirs == what) continue;
      constexpr std::string_view who = "trireme::comm::mpi";
      auto const sentence = peer < where->rank ? differing_calls(who, number, peer, theirs, where->rank, what)
                                               : differing_calls(who, number, where->rank, what, peer, theirs);
      throw comm_error(sentence, {where->rank, std::string(name_of(what.kind))});
    }
  }

  /// After the first exchange: combines and spreads the result, or puts small values in their places.
  void conclude() {
    bool const touched = from != nullptr;
    if (touched && combine != nullptr) {
      bool const scatter = what.kind == collective::reduce_scatter;
      auto const mine = scatter ? equal_slice(where->rank) : what.by_value ? slice{0, what.count} : cut(where->rank);
      terms_.clear();
      for (int rank = 0; rank < where->size; ++rank)
        terms_.push_back(rank == where->rank ? from + bytes(mine.first)
                         : what.by_value     ? value_of(rank)
                                             : slices_.data() + static_cast<std::size_t>(rank) * bytes(mine.count));
      if (mine.count > 0) combine(to + bytes(mine.first), terms_, mine.count);
      if (scatter || what.by_value) return;
      for (int step = 1; step < where->size; ++step) {
        int const source = (where->rank - step + where->size) % where->size;
        int const peer = (where->rank + step) % where->size;
        if (auto const part = cut(source); part.count > 0)
          receive(pieces_, to + bytes(part.first), bytes(part.count), source, 2);
        if (mine.count > 0) send(pieces_, to + bytes(mine.first), bytes(mine.count), peer, 2);
      }
      return;
    }
    if (!touched || !what.by_value) return;
    for (int rank = 0; rank < where->size; ++rank) {
      bool const own = rank == where->rank;
      if (what.kind == collective::broadcast && (own || rank != what.root)) continue;
      if (own && what.kind != collective::all_to_all) continue;
      auto const part = what.kind == collective::broadcast ? slice{0, what.count} : equal_slice(rank);
      if (part.count > 0)
        std::memcpy(to + bytes(part.first), own ? from + bytes(part.first) : value_of(rank), bytes(part.count));
    }
  }
  [[nodiscard]] std::byte const* value_of(int rank) const noexcept {
    return received_.data() + static_cast<std::size_t>(rank) * (sizeof(call) + mpi_small_bytes) + sizeof(call);
  }

  stage at_ = stage::announcing;
  int base_tag_ = 1;
  messages heard_, pieces_;
  std::vector<std::byte> received_, sent_, slices_;
  std::vector<std::byte const*> terms_;
};

}  // namespace trireme::comm::detail
