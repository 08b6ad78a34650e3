#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/comm/command.hpp"
#include "trireme/core/interval.hpp"

namespace trireme::comm {

/// The part of `count` elements that rank `rank` of `size` works on in all_reduce and broadcast. Cut at multiples of a
/// cache line, the first ranks taking one line more, so that no two ranks write to one line.
[[nodiscard]] constexpr interval slice_of(std::int64_t count, std::size_t element_bytes, int rank, int size) noexcept {
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

/// Ragged: `counts` are the elements of each rank.
[[nodiscard]] constexpr std::uint64_t all_gather(std::span<std::int64_t const> counts, std::size_t element_bytes,
                                                 int rank) {
  return static_cast<std::uint64_t>(counts[static_cast<std::size_t>(rank)]) * element_bytes * (counts.size() - 1);
}
/// `count` is of one part.
[[nodiscard]] constexpr std::uint64_t gather(std::int64_t count, std::size_t element_bytes, int rank, int root) {
  return rank == root ? 0 : static_cast<std::uint64_t>(count) * element_bytes;
}
[[nodiscard]] constexpr std::uint64_t reduce(std::int64_t count, std::size_t element_bytes, int rank, int root) {
  return gather(count, element_bytes, rank, root);
}
[[nodiscard]] constexpr std::uint64_t scatter(std::int64_t count, std::size_t element_bytes, int rank, int root,
                                              int size) {
  return broadcast(count, element_bytes, rank, root, size);
}

/// Of any collective that is not ragged.
[[nodiscard]] constexpr std::uint64_t of(call const& what, std::size_t element_bytes, int rank, int size) {
  switch (what.kind) {
    case collective::all_reduce:
      return all_reduce(what.count, element_bytes, rank, size);
    case collective::reduce_scatter:
    case collective::all_gather:
    case collective::all_to_all:
      return reduce_scatter(what.count, element_bytes, size);
    case collective::broadcast:
      return broadcast(what.count, element_bytes, rank, what.root, size);
    case collective::reduce:
    case collective::gather:
      return gather(what.count, element_bytes, rank, what.root);
    case collective::scatter:
      return scatter(what.count, element_bytes, rank, what.root, size);
    default:
      return 0;
  }
}

}  // namespace bytes_sent

}  // namespace trireme::comm
