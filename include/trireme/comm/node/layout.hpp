#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "trireme/comm/command.hpp"
#include "trireme/core/address.hpp"

namespace trireme::comm::detail {

// The data of each rank that the others can read: one header for the launch, and one board for each group. With threads
// they are on the heap of the process. Each process has a memory file: its header, then a heap for its boards.

inline constexpr int node_most_ranks = 256;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "processes share these words");

/// One rank of a launch.
struct alignas(64) node_header {
  static constexpr std::size_t bytes = 1 << 16;  ///< offset of the heap in a memory file
  static constexpr std::size_t sentence_bytes = 2048;

  std::uint64_t token[2] = {};  ///< shows whether a peer has opened the right file
  /// A futex on which threads of this rank sleep. Other ranks change it and wake them, if there are `sleepers`.
  alignas(64) std::atomic<std::uint32_t> bell{0};
  std::atomic<std::uint32_t> sleepers{0};
  /// 1 while this rank reads or writes memory of other ranks.
  alignas(64) std::atomic<std::uint32_t> inside{0};
  /// 1 once the body of this rank has returned, if it is a thread, or its process ends by exit().
  std::atomic<std::uint32_t> left{0};
  /// In the header of rank 0: 1 + the rank whose message gives the reason of the failure; 0 before a failure.
  alignas(64) std::atomic<std::uint32_t> failure{0};
  /// This rank's process ends with an error, and needs to know which rank reports it.
  std::atomic<std::uint32_t> ends{0};
  /// In the header of rank 0: 1 once some rank prints the error.
  std::atomic<std::uint32_t> reported{0};
  /// Whether this rank's process goes on after the failure, in another launch.
  enum decision : std::uint32_t { unsaid, yes, given_up };
  std::atomic<std::uint32_t> goes_on{unsaid};
  /// Which ranks go on: decided by the lowest of them, in its own header. A byte a rank, valid once `settled` is 1.
  std::atomic<std::uint32_t> settled{0};
  std::uint8_t those_left[node_most_ranks] = {};
  char sentence[sentence_bytes] = {};
};
static_assert(sizeof(node_header) <= node_header::bytes);

/// One rank's announcement of one collective of a group, written by that rank alone: one cache line.
struct alignas(64) node_posting {
  static constexpr std::uint32_t reachable = 1;  ///< the others may access this rank's memory
  static constexpr std::uint32_t writable = 2;   ///< broadcast: the others may write the values here
  static constexpr std::uint32_t phantom = 4;    ///< no memory at all: only synchronise

  struct places {
    std::uint64_t from;  ///< offsets from the base of the poster's memory
    std::uint64_t to;
    std::uint32_t flags;
  };

  std::atomic<std::uint64_t> word{0};  ///< number * 4 + (1: arrived, 2: this rank's share is done)
  call what;
  union {
    places memory;
    std::byte first[32];
  };

  node_posting() noexcept : memory{} {}
};
static_assert(sizeof(node_posting) == 64);

/// The elements that one rank sends to another in a ragged all_to_all.
struct node_portion {
  std::int64_t count;
  std::uint64_t place;  ///< offset from the base of the sender's memory
};

/// The messages of one rank to another: a ring of labels, which the sender writes and the receiver takes. If the
/// receiver cannot access the memory of a message, it is copied through slots, block by block, with one label for each
/// block.
struct alignas(64) node_channel {
  static constexpr std::uint64_t ring = 64;
  static constexpr std::uint64_t slot_count = 4;
  static constexpr std::size_t slot_bytes = 1 << 18;

  struct label {
    std::uint64_t place;  ///< offset from the base of the sender's memory, if the receiver reads there
    std::int64_t count;
    dtype type;
    bool direct;
  };
  std::atomic<std::uint64_t> head{0};              ///< labels ever written
  alignas(64) std::atomic<std::uint64_t> tail{0};  ///< labels ever taken
};

/// One rank's part of one group. It is followed by space for longer values, its channels to all ranks with their
/// labels, and its copies of small broadcasts (letters); if not all memory is accessible to all, also by its staging
/// slots and those of the channels.
struct alignas(64) node_board {
  static constexpr std::uint64_t ring = 64;
  static constexpr std::size_t value_bytes = 1024;  ///< values up to this size travel with the announcement
  static constexpr std::uint64_t eager_buffers =
      16;  ///< copies of small broadcasts: the root does not wait for readers
  static constexpr std::size_t eager_bytes = 1 << 14;
  static constexpr std::uint64_t slot_count = 4;
  /// The slots together are larger than a second-level cache, on purpose: a line that is still modified in the cache of
  /// one core is slow to read from another.
  static constexpr std::size_t slot_bytes = 1 << 18;

  alignas(64) std::atomic<std::uint64_t> unfinished{1};  ///< the lowest number that this rank has not finished
  std::atomic<std::uint32_t> left{0};                    ///< this rank has left the group
  alignas(64) std::atomic<std::uint32_t> leavers{0};     ///< ranks that no longer read this board
  /// Rounds of staged collectives, counted over all of them: copied in, reduced, copied out.
  alignas(64) std::atomic<std::uint64_t> filled{0};
  std::atomic<std::uint64_t> combined{0};
  std::atomic<std::uint64_t> drained{0};
  node_posting postings[ring];

  [[nodiscard]] node_posting& at(std::uint64_t number) noexcept { return postings[number % ring]; }
  // In a group of `size` ranks:

  /// Longer values of an announcement, or the portions of a ragged all_to_all.
  [[nodiscard]] std::byte* more(std::uint64_t number, int size) noexcept {
    return behind(sizeof(node_board)) + number % ring * more_bytes(size);
  }
  [[nodiscard]] std::byte* values(std::uint64_t number, std::size_t bytes, int size) noexcept {
    return bytes <= sizeof(node_posting::first) ? at(number).first : more(number, size);
  }
  [[nodiscard]] node_channel& channel(int to, int size) noexcept {
    return elements_at<node_channel>(behind(channels_at(size)))[to];
  }
  [[nodiscard]] node_channel::label& label(int to, std::uint64_t turn, int size) noexcept {
    auto const which = static_cast<std::size_t>(to) * node_channel::ring + turn % node_channel::ring;
    return elements_at<node_channel::label>(behind(labels_at(size)))[which];
  }
  [[nodiscard]] std::byte* eager_buffer(std::uint64_t which, int size) noexcept {
    return behind(eager_buffers_at(size)) + which % eager_buffers * eager_bytes;
  }
  [[nodiscard]] std::byte* slot(std::uint64_t round, int size) noexcept {
    return behind(staging_at(size)) + round % slot_count * slot_bytes;
  }
  [[nodiscard]] std::byte* channel_slot(int to, std::uint64_t turn, int size) noexcept {
    auto const which = static_cast<std::size_t>(to) * node_channel::slot_count + turn % node_channel::slot_count;
    return behind(channel_slots_at(size)) + which * node_channel::slot_bytes;
  }

  [[nodiscard]] static constexpr std::size_t bytes(int size, bool with_slots) noexcept {
    return with_slots ? channel_slots_at(size) + times(size, node_channel::slot_count * node_channel::slot_bytes)
                      : eager_buffers_at(size) + eager_buffers * eager_bytes;
  }
  /// Makes a board of a group of `size` in a block of bytes(size, ...).
  static node_board& make(void* block, int size) {
    auto* const board = ::new (block) node_board;
    for (int rank = 0; rank < size; ++rank) ::new (&board->channel(rank, size)) node_channel;
    return *board;
  }

 private:
  [[nodiscard]] std::byte* behind(std::size_t offset) noexcept { return reinterpret_cast<std::byte*>(this) + offset; }
  static constexpr std::size_t times(int size, std::size_t bytes) noexcept {
    return static_cast<std::size_t>(size) * bytes;
  }
  static constexpr std::size_t whole_pages(std::size_t bytes) noexcept { return (bytes + 4095) / 4096 * 4096; }
  static constexpr std::size_t more_bytes(int size) noexcept {
    auto const portions = times(size, sizeof(node_portion));
    return portions < value_bytes ? value_bytes : (portions + 63) / 64 * 64;
  }
  static constexpr std::size_t channels_at(int size) noexcept { return sizeof(node_board) + ring * more_bytes(size); }
  static constexpr std::size_t labels_at(int size) noexcept {
    return channels_at(size) + times(size, sizeof(node_channel));
  }
  static constexpr std::size_t eager_buffers_at(int size) noexcept {
    return labels_at(size) + times(size, node_channel::ring * sizeof(node_channel::label));
  }
  static constexpr std::size_t staging_at(int size) noexcept { return whole_pages(bytes(size, false)); }
  static constexpr std::size_t channel_slots_at(int size) noexcept {
    return staging_at(size) + slot_count * slot_bytes;
  }
};

[[nodiscard]] constexpr std::uint64_t node_arrived(std::uint64_t number) noexcept { return number * 4 + 1; }
[[nodiscard]] constexpr std::uint64_t node_shared(std::uint64_t number) noexcept { return number * 4 + 2; }

}  // namespace trireme::comm::detail
