// Kernels with warps of 64 lanes, as some AMD devices have them: a width of 32 that is assumed somewhere fails here.
#define SIMT_WARP 64
#include "../support/simt/threads.hpp"

#include <cstdint>
#include <limits>
#include <vector>

#include "../catch.hpp"
#include "trireme/ops/cuda/reductions.cuh"

TEST_CASE("reductions do not depend on the width of a warp") {
  using namespace trireme;
  using namespace ops::detail::device;
  static_assert(warp_width == 64);
  for (std::int64_t const n : {1, 1000, 5003}) {
    std::vector<float> x(static_cast<std::size_t>(n));
    std::uint64_t hashes = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(mix(i) % 1000) / 8;
      hashes += hash_element(7, i, std::bit_cast<std::uint32_t>(x[i]));
    }
    exact_sum want, got;
    for (std::size_t at = 0; at < x.size(); at += 1024) {  // the squares of these numbers are exact in double
      double block = 0;
      for (auto i = at; i < x.size() && i < at + 1024; ++i) block += static_cast<double>(x[i]) * x[i];
      want.add(block);
    }
    auto* const state = reinterpret_cast<unsigned long long*>(got.state().data());
    float const* const from = x.data();
    squared_tensors<float> all;
    all.x[0] = from;
    all.n[0] = n;
    all.end[0] = (n + 1023) / 1024;
    all.count = 1;
    REQUIRE(run("sum_of_squares", &sum_squares<float>, 2, block_threads, nullptr, all, state) == 0);
    CHECK(got == want);
    std::vector<std::uint32_t> bits;
    for (auto const each : x) bits.push_back(std::bit_cast<std::uint32_t>(each));
    unsigned long long total = 0;
    std::uint32_t const* const words = bits.data();
    REQUIRE(run("hash", &hash_elements<std::uint32_t>, 2, block_threads, nullptr, words, n, std::uint64_t{7},
                std::uint64_t{0}, &total) == 0);
    CHECK(total == hashes);
    bits.back() = 0x7f80'0000U;
    unsigned flag = 0;
    REQUIRE(run("finite", &find_non_finite<std::uint32_t>, 2, block_threads, nullptr, words, n, 0x7f80'0000U, &flag) ==
            0);
    CHECK(flag == 1);
  }
}
