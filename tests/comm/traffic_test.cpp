// test-sanitize: none
#include "trireme/comm/traffic.hpp"

#include "../catch.hpp"

namespace comm = trireme::comm;

TEST_CASE("slices cover a message without gaps and begin at cache lines", "[comm]") {
  for (int const size : {1, 2, 3, 7, 8})
    for (std::int64_t const count : {0, 1, 15, 16, 17, 1000, 4096})
      for (std::size_t const bytes : {1U, 2U, 4U, 8U}) {
        std::int64_t next = 0;
        for (int rank = 0; rank < size; ++rank) {
          auto const part = comm::slice_of(count, bytes, rank, size);
          CHECK(part.first == next);
          if (part.count > 0) CHECK(part.first * static_cast<std::int64_t>(bytes) % 64 == 0);
          next = part.first + part.count;
        }
        CHECK(next == count);
      }
}

TEST_CASE("all ranks together send the optimal volume", "[comm]") {
  for (int const size : {1, 2, 3, 8}) {
    std::uint64_t sent = 0;
    for (int rank = 0; rank < size; ++rank) sent += comm::bytes_sent::all_reduce(1001, 4, rank, size);
    CHECK(sent == 2U * 1001 * 4 * static_cast<unsigned>(size - 1));
    CHECK(comm::bytes_sent::reduce_scatter(24 * size, 2, size) == 48U * static_cast<unsigned>(size - 1));
  }
  for (int const rank : {1, 2, 3}) CHECK(comm::bytes_sent::broadcast(10, 8, rank, 1, 4) == 80);
  CHECK(comm::bytes_sent::broadcast(10, 8, 0, 1, 4) == 0);  // the one before the root
  CHECK(comm::bytes_sent::broadcast(10, 8, 0, 0, 1) == 0);
}
