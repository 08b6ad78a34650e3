#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "trireme/comm/cuda.hpp"

/// The common part of the benchmarks on a GPU: timing, and rows in the format of the other communicators.
namespace cuda_rows {

/// Microseconds of one call: the median of 9 rounds, each about 5 ms long. `together()` synchronises the ranks; every
/// rank calls this function in the same way, and `calls` must not depend on the rank.
template <class Call, class Together>
double microseconds(int calls, Call call, Together together) {
  std::vector<double> rounds;
  for (int round = 0; round < 10; ++round) {
    together();
    auto const begun = std::chrono::steady_clock::now();
    for (int k = 0; k < calls; ++k) call();
    together();
    std::chrono::duration<double, std::micro> const passed = std::chrono::steady_clock::now() - begun;
    if (round > 0) rounds.push_back(passed.count() / calls);  // the first is a warm-up
  }
  std::ranges::nth_element(rounds, rounds.begin() + 4);
  return rounds[4];
}

[[nodiscard]] inline int calls_for(std::int64_t bytes, int ranks) {
  return static_cast<int>(std::clamp<std::int64_t>((std::int64_t{4} << 30) / ((bytes + 1) * ranks), 4, 400));
}

inline void row(char const* communicator, char const* operation, std::int64_t bytes, int ranks, double microseconds) {
  auto const algbw = static_cast<double>(bytes) / microseconds / 1e3;
  std::string const what = operation;
  auto const share = static_cast<double>(ranks - 1) / ranks;
  auto const busbw = algbw * (what == "all_reduce" ? 2 * share : what == "broadcast" ? 1 : share);
  std::printf(
      "{\"communicator\": \"%s\", \"operation\": \"%s\", \"type\": \"f32\", \"bytes\": %lld, \"ranks\": %d, "
      "\"microseconds\": %.2f, \"algbw\": %.3f, \"busbw\": %.3f}\n",
      communicator, operation, static_cast<long long>(bytes), ranks, microseconds, algbw, busbw);
  std::fflush(stdout);
}

/// The reason why nothing can be measured here; empty if it can.
[[nodiscard]] inline std::string reason_to_skip() {
  int devices = 0;
  auto const code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess) return cudaGetErrorString(code);
  return devices > 0 ? "" : "there is no device";
}

}  // namespace cuda_rows
