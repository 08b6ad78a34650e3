#pragma once

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "../ladder/ladder.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/cuda.hpp"

// Programs that need a GPU: they print a line a case (passed, failed, skipped), and need neither Catch2 nor Eigen,
// because the machine that has the GPU may have neither. Exit code 77 where there is no GPU.

template <>
struct ladder::memory<trireme::cuda> {
  template <class T>
  static void put(tensor_view<T, trireme::cuda> to, T const* from) {
    move(to.address(), from, to.bytes(), cudaMemcpyHostToDevice);
  }
  template <class T>
  static std::vector<T> get(tensor_view<T, trireme::cuda> from) {
    std::vector<T> out(static_cast<std::size_t>(from.size()));
    move(out.data(), from.address(), from.bytes(), cudaMemcpyDeviceToHost);
    return out;
  }

 private:
  static void move(void* to, void const* from, std::size_t bytes, cudaMemcpyKind way) {
    if (bytes == 0) return;
    trireme::detail::expect_cuda(cudaMemcpyAsync(to, from, bytes, way, trireme::cuda::stream()), "the test's copy");
    trireme::cuda::finish();
  }
};

namespace gpu {

/// Why nothing can run here; empty if it can.
inline std::string reason_to_skip() {
  int devices = 0;
  auto const code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return {};
  return trireme::text("no GPU: ", code == cudaSuccess ? "there is no device" : cudaGetErrorString(code));
}

/// Runs cases one after the other and prints what became of each.
class cases {
 public:
  explicit cases(bool speaks = true) : speaks_(speaks) {}

  template <class Case>
  void run(std::string const& name, Case what) {
    dog_.now(name);
    try {
      what();
      say("passed", name, "");
    } catch (std::exception const& problem) {
      ++failed_;
      say("failed", name, problem.what());
    }
  }
  [[nodiscard]] int exit_code() const { return failed_ > 0 ? 1 : 0; }

 private:
  void say(char const* how, std::string const& name, char const* why) const {
    if (!speaks_ && *why == '\0') return;  // the other ranks report what fails
    std::printf("%s: %s%s%s\n", how, name.c_str(), *why == '\0' ? "" : ": ", why);
    std::fflush(stdout);
  }
  bool speaks_;
  int failed_ = 0;
  watchdog dog_{"a test on the GPU", std::chrono::seconds(480)};
};

}  // namespace gpu
