// Kernels with warps of 64 lanes, as some AMD devices have them: a width of 32 that is assumed somewhere fails here.
#define SIMT_WARP 64
#include "../support/simt/threads.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../catch.hpp"
#include "trireme/ops/cuda/norms.cu"
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

namespace {

using namespace trireme;
using vector = std::vector<float>;

/// n numbers between middle - 1 and middle + 1.
vector numbers(std::int64_t n, std::uint64_t seed, float middle) {
  vector all(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = middle + static_cast<float>(mix(seed << 32 | i) % 2001) / 1000 - 1;
  return all;
}
/// The largest difference, relative to 1 + the wanted number.
double difference(vector const& got, std::vector<double> const& want) {
  double most = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    auto const off = std::abs(static_cast<double>(got[i]) - want[i]) / (1 + std::abs(want[i]));
    most = off <= most ? most : off;  // a NaN stays
    if (std::isnan(off)) return off;
  }
  return most;
}

/// A norm and its gradients against sums in double.
void check_norm(bool centred, std::int64_t rows, std::int64_t channels) {
  INFO(rows << " rows of " << channels << (centred ? ", layer_norm" : ", rms_norm"));
  constexpr double epsilon = 1e-3;
  auto const width = static_cast<std::size_t>(channels), height = static_cast<std::size_t>(rows);
  auto const x = numbers(rows * channels, 1, 0.5F), dy = numbers(rows * channels, 2, 0);
  auto const gain = numbers(channels, 3, 1), bias = numbers(channels, 4, 0);
  std::vector<double> y(x.size()), dx(x.size()), dgain(width), dbias(width);
  for (std::size_t row = 0; row < height; ++row) {
    auto const at = [&](vector const& of, std::size_t c) { return static_cast<double>(of[row * width + c]); };
    auto const share = 1 / static_cast<double>(channels);
    double mean = 0, squares = 0, average = 0, along = 0;
    for (std::size_t c = 0; c < width && centred; ++c) mean += share * at(x, c);
    for (std::size_t c = 0; c < width; ++c) squares += share * (at(x, c) - mean) * (at(x, c) - mean);
    auto const factor = 1 / std::sqrt(squares + epsilon);
    auto const normal = [&](std::size_t c) { return (at(x, c) - mean) * factor; };
    auto const slope = [&](std::size_t c) { return at(dy, c) * static_cast<double>(gain[c]); };
    for (std::size_t c = 0; c < width; ++c) {
      y[row * width + c] = normal(c) * static_cast<double>(gain[c]) + (centred ? static_cast<double>(bias[c]) : 0);
      average += centred ? share * slope(c) : 0;
      along += share * slope(c) * normal(c);
      dgain[c] += at(dy, c) * normal(c);
      dbias[c] += at(dy, c);
    }
    for (std::size_t c = 0; c < width; ++c) dx[row * width + c] = factor * (slope(c) - average - normal(c) * along);
  }
  namespace kernels = ops::cuda_kernels;
  vector got_y(x.size()), got_dx(x.size()), got_dgain(width), got_dbias(width), mean(height), rstd(height);
  vector scratch(kernels::norm_backward_scratch(dtype::f32, rows, channels) / sizeof(float));
  kernels::norm_backward_call const call{.of = dtype::f32,
                                         .dx = got_dx.data(),
                                         .dgain = got_dgain.data(),
                                         .dbias = got_dbias.data(),
                                         .dy = dy.data(),
                                         .x = x.data(),
                                         .mean = mean.data(),
                                         .rstd = rstd.data(),
                                         .gain = gain.data(),
                                         .rows = rows,
                                         .channels = channels,
                                         .accumulate = false,
                                         .scratch = scratch.data()};
  if (centred) {
    REQUIRE(kernels::layer_norm(nullptr, dtype::f32, got_y.data(), mean.data(), rstd.data(), x.data(), gain.data(),
                                bias.data(), rows, channels, epsilon) == 0);
    REQUIRE(kernels::layer_norm_backward(nullptr, call) == 0);
    CHECK(difference(got_dbias, dbias) <= 1e-5);
  } else {
    REQUIRE(kernels::rms_norm(nullptr, dtype::f32, got_y.data(), rstd.data(), x.data(), gain.data(), rows, channels,
                              epsilon) == 0);
    REQUIRE(kernels::rms_norm_backward(nullptr, call) == 0);
  }
  CHECK(difference(got_y, y) <= 3e-6);
  CHECK(difference(got_dx, dx) <= 6e-6);
  CHECK(difference(got_dgain, dgain) <= 1e-5);
}

}  // namespace

// The lengths take each of the kernels: rows of a warp, of a block, and rows that are read several times.
TEST_CASE("norms do not depend on the width of a warp") {
  for (bool const centred : {true, false})
    for (auto const channels : {7, 48, 264, 512, 768, 1536, 2048, 2056, 4096, 8192})
      check_norm(centred, channels < 1000 ? 21 : 5, channels);
}
