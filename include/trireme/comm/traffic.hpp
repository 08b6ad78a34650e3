#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "trireme/contract/communicator.hpp"

namespace trireme::comm {

/// Elements [first, first + count) of a message.
struct slice {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(slice const&, slice const&) = default;
};

/// The part of `count` elements that rank `rank` of `size` works on in all_reduce and broadcast. Cut at multiples of a
/// cache line, the first ranks taking one line more, so that no two ranks write to one line.
[[nodiscard]] constexpr slice slice_of(std::int64_t count, std::size_t element_bytes, int rank, int size) noexcept {
  auto const line = static_cast<std::int64_t>(64 / element_bytes);
  auto const lines = (count + line - 1) / line;
  auto const each = lines / size;
  auto const larger = lines % size;
  auto const first = std::min(count, (rank * each + std::min<std::int64_t>(rank, larger)) * line);
  auto const last = std::min(count, first + (each + (rank < larger ? 1 : 0)) * line);
  return {first, last - first};
}

/// What a rank sends to other ranks in one collective, in bytes: what `traffic()` counts on every communicator, and
/// what a plan adds up before anything runs. `count` is the number of elements of the whole view.
///
/// Bytes  the bandwidth-optimal volume. A communicator may send more in messages so small that latency decides (MPI
///        gathers those whole), and threads read instead of sending; both count the same bytes nevertheless.
namespace bytes_sent {

[[nodiscard]] constexpr std::uint64_t all_reduce(std::int64_t count, std::size_t element_bytes, int rank, int size) {
  auto const own = slice_of(count, element_bytes, rank, size).count;
  return static_cast<std::uint64_t>(count - own + own * (size - 1)) * element_bytes;
}
[[nodiscard]] constexpr std::uint64_t reduce_scatter(std::int64_t count, std::size_t element_bytes, int size) {
  return static_cast<std::uint64_t>(count / size * (size - 1)) * element_bytes;
}
[[nodiscard]] constexpr std::uint64_t all_gather(std::int64_t count, std::size_t element_bytes, int size) {
  return reduce_scatter(count, element_bytes, size);
}
[[nodiscard]] constexpr std::uint64_t all_to_all(std::int64_t count, std::size_t element_bytes, int size) {
  return reduce_scatter(count, element_bytes, size);
}
[[nodiscard]] constexpr std::uint64_t broadcast(std::int64_t count, std::size_t element_bytes, int rank, int root,
                                                int size) {
  return rank == root ? static_cast<std::uint64_t>(count * (size - 1)) * element_bytes : 0;
}

}  // namespace bytes_sent

}  // namespace trireme::comm
