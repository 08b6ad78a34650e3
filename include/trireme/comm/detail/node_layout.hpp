#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "trireme/comm/command.hpp"

namespace trireme::comm::detail {

// What lies in the memory file of each rank: one header, then a heap. The boards of its groups are blocks of the heap.

inline constexpr int node_most_ranks = 256;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "processes share these words");

/// The beginning of a rank's memory file.
struct node_header {
  static constexpr std::size_t bytes = 1 << 16;  ///< where the heap begins
  static constexpr std::size_t sentence_bytes = 2048;

  std::uint64_t token[2] = {};  ///< proves that a peer has opened the right file
  /// Whoever sleeps in this rank's process sleeps on `bell`; others ring it if there are sleepers.
  alignas(64) std::atomic<std::uint32_t> bell{0};
  std::atomic<std::uint32_t> sleepers{0};
  /// It reads or writes memory of other ranks at this moment.
  alignas(64) std::atomic<std::uint32_t> inside{0};
  /// In the file of rank 0: 1 + the rank whose sentence says why the launch has failed.
  alignas(64) std::atomic<std::uint32_t> failure{0};
  /// This rank's process ends with an error, and asks who reports it.
  std::atomic<std::uint32_t> ends{0};
  /// In the file of rank 0: some rank reports.
  std::atomic<std::uint32_t> reported{0};
  /// Whether this rank's process goes on after the failure, in another launch.
  enum decision : std::uint32_t { unsaid, yes, given_up };
  std::atomic<std::uint32_t> goes_on{unsaid};
  /// Who goes on, as this rank has settled it for those above it: a byte a rank, valid once `settled` is 1.
  std::atomic<std::uint32_t> settled{0};
  std::uint8_t those_left[node_most_ranks] = {};
  char sentence[sentence_bytes] = {};
};
static_assert(sizeof(node_header) <= node_header::bytes);

/// One rank's announcement of one collective of a group, written by that rank alone.
struct alignas(64) node_posting {
  static constexpr std::size_t value_bytes = 1024;  ///< messages up to this size travel in it
  static constexpr std::uint32_t reachable = 1;     ///< the others may work in this rank's memory
  static constexpr std::uint32_t writable = 2;      ///< in broadcast: also where the values go
  static constexpr std::uint32_t untouchable = 4;   ///< no memory at all: only synchronise

  struct places {
    std::uint64_t from;  ///< offsets in the poster's file
    std::uint64_t to;
    std::uint32_t flags;
  };

  std::atomic<std::uint64_t> word{0};  ///< number * 4 + (1: arrived, 2: this rank's share is done)
  call what;
  union {
    places memory;
    std::byte first[32];
  };
  alignas(8) std::byte more[sizeof(std::int64_t) * node_most_ranks];  ///< longer values, or the counts of a ragged call

  node_posting() noexcept : memory{} {}
  [[nodiscard]] std::byte* values(std::size_t bytes) noexcept { return bytes <= sizeof(first) ? first : more; }
};
static_assert(offsetof(node_posting, more) == 64);

/// The messages of one rank to another: a ring of slots, which the sender fills and the receiver empties.
struct alignas(64) node_channel {
  static constexpr std::uint64_t slots = 4;
  static constexpr std::size_t slot_bytes = 1 << 18;

  struct label {
    std::uint64_t place;  ///< offset in the sender's file, if the receiver reads there
    std::int64_t count;
    dtype type;
    bool direct;
  };
  std::atomic<std::uint64_t> head{0};              ///< slots ever filled
  label labels[slots] = {};                        ///< of the messages that begin in the slots
  alignas(64) std::atomic<std::uint64_t> tail{0};  ///< slots ever emptied
};

/// One rank's part of one group. Behind it lie its staging slots, its channels to all ranks, and their slots.
struct node_board {
  static constexpr std::uint64_t ring = 64;
  static constexpr std::uint64_t slots = 4;
  /// All of them exceed a second-level cache, on purpose: lines still dirty there travel slowly to another core.
  static constexpr std::size_t slot_bytes = 1 << 18;

  alignas(64) std::atomic<std::uint64_t> unfinished{1};  ///< the lowest number that this rank has not finished
  std::atomic<std::uint32_t> left{0};                    ///< this rank has left the group
  alignas(64) std::atomic<std::uint32_t> leavers{0};     ///< ranks that will not look at this board any more
  /// Rounds of staged collectives, counted over all of them: copied in, reduced, copied out.
  alignas(64) std::atomic<std::uint64_t> filled{0};
  std::atomic<std::uint64_t> combined{0};
  std::atomic<std::uint64_t> drained{0};
  node_posting postings[ring];

  [[nodiscard]] node_posting& at(std::uint64_t number) noexcept { return postings[number % ring]; }
  [[nodiscard]] std::byte* slot(std::uint64_t round) noexcept {
    return reinterpret_cast<std::byte*>(this) + staging_at() + round % slots * slot_bytes;
  }
  [[nodiscard]] node_channel& channel(int to) noexcept {
    return reinterpret_cast<node_channel*>(reinterpret_cast<std::byte*>(this) + channels_at())[to];
  }
  [[nodiscard]] std::byte* channel_slot(int size, int to, std::uint64_t turn) noexcept {
    auto const which = static_cast<std::size_t>(to) * node_channel::slots + turn % node_channel::slots;
    return reinterpret_cast<std::byte*>(this) + channel_slots_at(size) + which * node_channel::slot_bytes;
  }

  [[nodiscard]] static constexpr std::size_t bytes(int size) noexcept {
    return channel_slots_at(size) + static_cast<std::size_t>(size) * node_channel::slots * node_channel::slot_bytes;
  }
  /// Makes a board of a group of `size` in a block of bytes(size).
  static node_board& make(void* block, int size) {
    auto* const board = ::new (block) node_board;
    for (int rank = 0; rank < size; ++rank) ::new (&board->channel(rank)) node_channel;
    return *board;
  }

 private:
  static constexpr std::size_t whole_pages(std::size_t bytes) noexcept { return (bytes + 4095) / 4096 * 4096; }
  static constexpr std::size_t staging_at() noexcept { return whole_pages(sizeof(node_board)); }
  static constexpr std::size_t channels_at() noexcept { return staging_at() + slots * slot_bytes; }
  static constexpr std::size_t channel_slots_at(int size) noexcept {
    return whole_pages(channels_at() + static_cast<std::size_t>(size) * sizeof(node_channel));
  }
};

[[nodiscard]] constexpr std::uint64_t node_arrived(std::uint64_t number) noexcept { return number * 4 + 1; }
[[nodiscard]] constexpr std::uint64_t node_shared(std::uint64_t number) noexcept { return number * 4 + 2; }

}  // namespace trireme::comm::detail
