#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "trireme/comm/traffic.hpp"

namespace trireme::comm::detail {

/// A buffer that never shrinks; not initialised. Its contents are kept.
class byte_buffer {
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

/// The blocks that rounds carry besides calls: a block of each rank, or of one, to all; or from each rank a block for
/// each.
struct round_blocks {
  enum class round_kind : std::uint8_t { nothing, gathered, distributed };
  round_kind how = round_kind::nothing;
  std::size_t each = 0;              ///< bytes of a block
  int only = -1;                     ///< gathered: the one rank that has a block
  std::vector<std::size_t> sizes{};  ///< instead of `each`: of the block of this rank, or for this rank

  [[nodiscard]] std::size_t of(int rank) const noexcept {
    if (how == round_kind::nothing || (only >= 0 && rank != only)) return 0;
    return sizes.empty() ? each : sizes[static_cast<std::size_t>(rank)];
  }
  /// Bytes of the blocks of `count` ranks: of rank `last` and the ranks before it.
  [[nodiscard]] std::size_t of_all(int last, int count, int size) const noexcept {
    if (how == round_kind::nothing) return 0;
    if (only >= 0) return (last - only + size) % size < count ? each : 0;
    if (sizes.empty()) return each * static_cast<std::size_t>(count);
    std::size_t sum = 0;
    for (int step = 0; step < count; ++step) sum += of((last - step + size) % size);
    return sum;
  }
  [[nodiscard]] std::size_t largest() const noexcept {
    return sizes.empty() ? each : *std::max_element(sizes.begin(), sizes.end());
  }
};

/// The rounds with which a collective begins between machines: in round i each rank sends to the rank 2^i after it, and
/// receives from the rank 2^i before it; after ceil(log2(size)) rounds it has received from all ranks, through others.
/// Messages begin with the call of their sender, and carry blocks. A rank that receives a call other than its own
/// stops. So no rank completes all rounds unless all calls are equal, because each path between differing calls has a
/// step at which they differ.
///
/// Method   [Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988]; with blocks [Bruck et al.,
///          "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997].
/// Bytes    sent by a rank: gathered: at most the blocks of all others (of one rank: its block, each round); dealt:
///          half of its blocks, each round. Kept: the blocks that are gathered or dealt, and twice (gathered: once) the
///          largest message.
///
/// @tparam Wire  carries messages between two ranks, one a round and channel:
///                 send(peer, channel, bytes, count)   the bytes must not change until sent()
///                 sent()                              whether all sends are done
///                 take(peer, channel, message)        whether a message has arrived; it is valid until the next call
///                 compare(peer, call)                 throws if the call of a peer differs
///                 refuse(peer)                        throws: a message has a wrong length, or contains no call
template <class Wire>
class rounds {
 public:
  using round_kind = round_blocks::round_kind;

  /// Clears the description of the blocks, which the caller then fills in before place().
  round_blocks& prepare() noexcept {
    blocks_.how = round_kind::nothing;
    blocks_.each = 0;
    blocks_.only = -1;
    blocks_.sizes.clear();
    return blocks_;
  }
  void place(call const& what, int rank, int size) {
    what_ = what;
    rank_ = rank;
    size_ = size;
    last_ = rounds_among(size);
    round_ = 0;
    received_ = false;
    std::size_t bytes = 0;
    if (blocks_.how == round_kind::distributed) {
      pitch_ = (blocks_.largest() + 7) / 8 * 8;
      bytes = pitch_ * static_cast<std::size_t>(size);
      static_cast<void>(out_.at_least(head_bytes + blocks_.largest() * static_cast<std::size_t>((size + 1) / 2)));
    } else {
      bytes = blocks_.of_all(rank, size, size);
    }
    std::memcpy(area_.at_least(head_bytes + bytes), &what_, head_bytes);
    have_ = blocks_.of(rank);
  }
  /// Gathered: this rank's block.
  [[nodiscard]] std::byte* own() const noexcept { return area_.data() + head_bytes; }
  /// Dealt: the block for a rank, before begin().
  [[nodiscard]] std::byte* block_for(int rank) const noexcept { return block_at((rank - rank_ + size_) % size_); }

  void begin(Wire& wire, int channel) {
    channel_ = channel;
    if (round_ < last_) send(wire);
  }
  /// Makes the progress that is possible now; true if all rounds are done.
  [[nodiscard]] bool advance(Wire& wire) {
    for (; round_ < last_; ++round_) {
      if (!received_) {
        std::span<std::byte const> message;
        if (!wire.take(source(), channel_, message)) return false;
        receive(wire, message);
        received_ = true;
      }
      if (blocks_.how == round_kind::distributed && !wire.sent()) return false;  // the next round needs its buffer
      received_ = false;
      if (round_ + 1 < last_) send(wire, round_ + 1);
    }
    return wire.sent();
  }
  /// The rank for which it waits, or -1.
  [[nodiscard]] int waits_for() const noexcept { return round_ < last_ && !received_ ? source() : -1; }

  /// Afterwards: calls visit(rank, block) for the block of each rank, or from each rank.
  template <class Visit>
  void for_each_block(Visit visit) const {
    std::size_t first = 0;
    for (int step = 0; step < size_; ++step) {
      int const rank = (rank_ - step + size_) % size_;
      if (blocks_.how == round_kind::distributed) {
        visit(rank, block_at(step));
        continue;
      }
      if (blocks_.only < 0 || rank == blocks_.only) visit(rank, own() + first);
      first += blocks_.of(rank);
    }
  }
  [[nodiscard]] round_kind how() const noexcept { return blocks_.how; }

 private:
  static constexpr std::size_t head_bytes = sizeof(call);

  [[nodiscard]] int hop(int round) const noexcept { return 1 << round; }
  [[nodiscard]] int source() const noexcept { return (rank_ - hop(round_) + size_) % size_; }
  [[nodiscard]] std::byte* block_at(int step) const noexcept { return own() + static_cast<std::size_t>(step) * pitch_; }
  /// Calls visit(slot, bytes) for the blocks that move in a round. Before a round, a block in slot j of rank r is for
  /// rank r + j with the bits of the previous rounds cleared in j.
  template <class Visit>
  void for_each_distributed(int round, int rank, Visit visit) const {
    for (int step = hop(round); step < size_; ++step)
      if ((step & hop(round)) != 0) visit(step, blocks_.of((rank + (step & ~(hop(round) - 1))) % size_));
  }

  void send(Wire& wire) { send(wire, round_); }
  void send(Wire& wire, int round) {
    int const target = (rank_ + hop(round)) % size_;
    if (blocks_.how != round_kind::distributed) {
      auto const count = std::min(hop(round), size_ - hop(round));
      wire.send(target, channel_, area_.data(), head_bytes + blocks_.of_all(rank_, count, size_));
      return;
    }
    auto* at = out_.data();
    std::memcpy(at, &what_, head_bytes);
    at += head_bytes;
    for_each_distributed(round, rank_, [&](int step, std::size_t bytes) {
      std::memcpy(at, block_at(step), bytes);
      at += bytes;
    });
    wire.send(target, channel_, out_.data(), static_cast<std::size_t>(at - out_.data()));
  }
  void receive(Wire& wire, std::span<std::byte const> message) {
    int const peer = source();
    call theirs;
    if (message.size() < head_bytes || !read_call(theirs, message.data())) wire.refuse(peer);
    wire.compare(peer, theirs);
    message = message.subspan(head_bytes);
    if (blocks_.how == round_kind::distributed) {
      std::size_t all = 0;
      for_each_distributed(round_, peer, [&](int, std::size_t bytes) { all += bytes; });
      if (message.size() != all) wire.refuse(peer);
      auto const* at = message.data();
      for_each_distributed(round_, peer, [&](int step, std::size_t bytes) {
        std::memcpy(block_at(step), at, bytes);
        at += bytes;
      });
      return;
    }
    auto const count = std::min(hop(round_), size_ - hop(round_));
    if (message.size() != blocks_.of_all(peer, count, size_)) wire.refuse(peer);
    if (!message.empty()) std::memcpy(own() + have_, message.data(), message.size());
    have_ += message.size();
  }

  round_blocks blocks_;
  call what_;
  int rank_ = 0;
  int size_ = 1;
  int channel_ = 0;
  int last_ = 0;
  int round_ = 0;
  bool received_ = false;  ///< message of this round has arrived
  std::size_t have_ = 0;   ///< gathered bytes
  std::size_t pitch_ = 0;  ///< between dealt blocks
  byte_buffer area_, out_;
};

}  // namespace trireme::comm::detail
