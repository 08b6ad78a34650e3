// test-sanitize: thread address
// test-alone: the stand-in is included before the kernels
#include "../support/simt/threads.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "trireme/ops/cuda/device.hpp"

// Kernels with planted faults, each of which the stand-in must name. The faulty runs are test cases that only run when
// they are named: a sanitizer ends the program, so each is a process of its own.
namespace {

using namespace trireme::ops::detail::device;

enum class fault {
  none,
  no_barrier_after_writing,
  no_barrier_before_reuse,
  unordered_sum_of_warps,
  unordered_sum_of_blocks,
  read_past_the_end,
  write_past_a_shared_array,
  divergent_shuffle,
  barriers_apart,
  copy_not_awaited,
  misaligned_vector,
};

template <int Threads, fault Fault>
__device__ float block_sum(float x) {
  float* const of_warp = block_shared<float[Threads / warp_width]>();
  for (int by = warp_width / 2; by > 0; by /= 2) x += shuffle_xor(x, by);
  if (Fault != fault::no_barrier_before_reuse) sync_block();  // the sums of the call before have been read
  if (threadIdx.x % warp_width == 0)
    of_warp[threadIdx.x / warp_width + (Fault == fault::write_past_a_shared_array ? 1 : 0)] = x;
  if (Fault != fault::no_barrier_after_writing) sync_block();
  float total = 0;
  for (int w = 0; w < Threads / warp_width; ++w) total += of_warp[w];
  return total;
}

/// y = (x - mean) / root of the variance, a block a row.
template <int Threads, fault Fault>
__global__ void normalise(float* y, float const* x, int columns) {
  float const* const from = x + static_cast<std::int64_t>(blockIdx.x) * columns;
  float* const to = y + static_cast<std::int64_t>(blockIdx.x) * columns;
  int const thread = static_cast<int>(threadIdx.x);
  float part = 0;
  for (int c = thread; c < columns + (Fault == fault::read_past_the_end ? 1 : 0); c += Threads) part += from[c];
  float const mean = block_sum<Threads, Fault>(part) / static_cast<float>(columns);
  part = 0;
  for (int c = thread; c < columns; c += Threads) part += (from[c] - mean) * (from[c] - mean);
  float const variance = block_sum<Threads, Fault>(part) / static_cast<float>(columns);
  if (Fault == fault::divergent_shuffle && thread < 16) part = shuffle_xor(part, 1);
  if (Fault == fault::barriers_apart) {
    if (thread < Threads / 2)
      sync_block();
    else
      sync_block();
  }
  for (int c = thread; c < columns; c += Threads) to[c] = (from[c] - mean) / std::sqrt(variance + part * 0);
}

template <fault Fault>
__global__ void count(unsigned long long* total, unsigned long long const* x, std::int64_t n) {
  unsigned long long own = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x)
    own += x[i];
  for (int by = warp_width / 2; by > 0; by /= 2) own += shuffle_xor(own, by);
  if (threadIdx.x % warp_width == 0) {
    if (Fault == fault::unordered_sum_of_warps || (Fault == fault::unordered_sum_of_blocks && threadIdx.x == 0))
      *total += own;
    else
      atomic_add(*total, own);
  }
}

/// y = x, four numbers a thread, through shared memory.
template <fault Fault>
__global__ void pass_on(float* y, float const* x) {
  struct alignas(16) four {
    float all[4];
  };
  four* const staged = block_shared<four[64]>();
  int const thread = static_cast<int>(threadIdx.x);
  start_copy(&staged[thread], x + 4 * thread + (Fault == fault::misaligned_vector ? 1 : 0), true);
  if (Fault != fault::copy_not_awaited) finish_copies();
  for (int i = 0; i < 4; ++i) y[4 * thread + i] = staged[thread].all[i];
}

/// How far y is from what `normalise` promises, at most.
template <fault Fault, int Threads = 128>
float run_normalise(int rows = 6, int columns = 200) {
  auto const n = static_cast<std::size_t>(rows * columns);
  std::unique_ptr<float[]> const x(new float[n]), y(new float[n]);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 7919 % 1000) / 100;
  auto const code = run("normalise", &normalise<Threads, Fault>, rows, Threads, nullptr, y.get(), x.get(), columns);
  CHECK(code == 0);
  float worst = 0;
  for (int r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    float const* const row = x.get() + r * columns;
    for (int c = 0; c < columns; ++c) mean += row[c] / static_cast<double>(columns);
    for (int c = 0; c < columns; ++c) variance += (row[c] - mean) * (row[c] - mean) / columns;
    for (int c = 0; c < columns; ++c) {
      auto const off = std::abs(y[static_cast<std::size_t>(r * columns + c)] - (row[c] - mean) / std::sqrt(variance));
      if (!(off <= static_cast<double>(worst))) worst = static_cast<float>(off);
    }
  }
  return worst;
}
template <fault Fault>
bool run_count(std::int64_t n = 5000) {
  std::vector<unsigned long long> x(static_cast<std::size_t>(n));
  unsigned long long total = 0, want = 0;
  for (std::size_t i = 0; i < x.size(); ++i) want += x[i] = i * 7919;
  auto const code = run("count", &count<Fault>, 4, 64, nullptr, &total, x.data(), n);
  return code == 0 && total == want;
}
template <fault Fault>
bool run_pass_on() {
  struct alignas(16) numbers {
    float all[260];
  };
  auto const x = std::make_unique<numbers>(), y = std::make_unique<numbers>();
  for (int i = 0; i < 260; ++i) x->all[i] = static_cast<float>(i);
  auto const code = run("pass_on", &pass_on<Fault>, 1, 64, nullptr, &y->all[0], const_cast<float const*>(&x->all[0]));
  return code == 0 && std::equal(x->all, x->all + 256, y->all);
}
void write_from_two_ranks() {
  std::vector<float> const x(128, 1.0F);
  std::vector<float> y(128);
  auto const rank = [&] {
    static_cast<void>(run("normalise", &normalise<64, fault::none>, 2, 64, nullptr, y.data(), x.data(), 64));
  };
  std::thread first(rank), second(rank);
  first.join();
  second.join();
}

/// Runs a test case of this program in a process of its own; returns what it has written, with its exit code last.
std::string output_of(std::string const& test) {
  std::array<char, 4096> path{};
  auto const length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  REQUIRE(length > 0);
  auto const command = "'" + std::string(path.data()) + "' '" + test + "' 2>&1";
  auto* const pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string all;
  std::array<char, 4096> part{};
  while (auto const n = std::fread(part.data(), 1, part.size(), pipe)) all.append(part.data(), n);
  auto const code = ::pclose(pipe);
  return all + "\nexit code " + std::to_string(code);
}
bool has(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

#if defined(SIMT_THREAD_SANITIZER)
enum class build { plain, thread, address } constexpr here_is = build::thread;
#elif defined(SIMT_ADDRESS_SANITIZER)
enum class build { plain, thread, address } constexpr here_is = build::address;
#else
enum class build { plain, thread, address } constexpr here_is = build::plain;
#endif

void expect_race(std::string const& test, std::string const& kernel) {
  if (here_is != build::thread) return;
  auto const said = output_of(test);
  INFO(said);
  CHECK(has(said, "data race"));
  CHECK(has(said, kernel + " block "));
  CHECK(has(said, " thread "));
  CHECK(has(said, "threads_test.cpp"));
  CHECK_FALSE(has(said, "exit code 0"));
}
void expect_fault(std::string const& test, std::string const& kind, std::string const& kernel = "normalise",
                  std::string const& file = "threads_test.cpp") {
  if (here_is != build::address) return;
  auto const said = output_of(test);
  INFO(said);
  CHECK(has(said, kind));
  CHECK(has(said, "kernel " + kernel + ", block ("));
  CHECK(has(said, "thread ("));
  CHECK(has(said, file));
  CHECK_FALSE(has(said, "exit code 0"));
}
template <fault Fault>
std::string error_of() {
  try {
    run_normalise<Fault>();
  } catch (simt::error const& e) {
    return e.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("kernels without a fault are right in every order of threads and blocks") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    simt::set_seed(seed);
    CHECK(run_normalise<fault::none>() < 1e-4F);
    CHECK(run_count<fault::none>());
    CHECK(run_pass_on<fault::none>());
  }
  std::thread first([] { static_cast<void>(run_count<fault::none>()); });
  std::thread second([] { static_cast<void>(run_count<fault::none>()); });
  first.join();
  second.join();
}

TEST_CASE("a barrier that is missing after a write to shared memory is found") {
  if (here_is == build::plain) CHECK_FALSE(run_normalise<fault::no_barrier_after_writing>() < 1e-4F);  // poison
  expect_race("fault: no barrier after writing", "normalise");
}
TEST_CASE("fault: no barrier after writing", "[.]") { run_normalise<fault::no_barrier_after_writing>(); }

TEST_CASE("a barrier that is missing before shared memory is used again is found") {
  expect_race("fault: no barrier before reuse", "normalise");
}
TEST_CASE("fault: no barrier before reuse", "[.]") { run_normalise<fault::no_barrier_before_reuse>(); }

TEST_CASE("a sum that warps or blocks form without order is found") {
  expect_race("fault: unordered sum of warps", "count");
  expect_race("fault: unordered sum of blocks", "count");
}
TEST_CASE("fault: unordered sum of warps", "[.]") { run_count<fault::unordered_sum_of_warps>(); }
TEST_CASE("fault: unordered sum of blocks", "[.]") { run_count<fault::unordered_sum_of_blocks>(); }

TEST_CASE("a read past the end of a tensor is found") {
  expect_fault("fault: read past the end", "heap-buffer-overflow");
}
TEST_CASE("fault: read past the end", "[.]") { run_normalise<fault::read_past_the_end>(); }

TEST_CASE("a write past a shared array is found") {
  expect_fault("fault: write past a shared array", "use-after-poison");
}
TEST_CASE("fault: write past a shared array", "[.]") { run_normalise<fault::write_past_a_shared_array>(); }

TEST_CASE("what a thread copies in the background and does not wait for has not come") {
  CHECK_FALSE(run_pass_on<fault::copy_not_awaited>());
}

TEST_CASE("a vector that is read at an address that is not aligned for it is found") {
  expect_fault("fault: misaligned vector", "misaligned address", "pass_on", "device.hpp:");
}
TEST_CASE("fault: misaligned vector", "[.]") { static_cast<void>(run_pass_on<fault::misaligned_vector>()); }

TEST_CASE("a shuffle whose mask names lanes that are elsewhere is named") {
  auto const said = error_of<fault::divergent_shuffle>();
  INFO(said);
  CHECK(has(said, "simt: deadlock: kernel normalise, block ("));
  CHECK(has(said, "waits in shuffle_xor in threads_test.cpp:"));
}

TEST_CASE("threads that wait in different barriers are named") {
  auto const said = error_of<fault::barriers_apart>();
  INFO(said);
  CHECK(has(said, "simt: threads wait in different barriers: kernel normalise, block ("));
  CHECK(has(said, "thread (0,0,0) waits in sync_block in threads_test.cpp:"));
  CHECK(has(said, "thread (64,0,0) waits in sync_block in threads_test.cpp:"));
  CHECK(run_normalise<fault::none>() < 1e-4F);  // the next kernel is right again
}

TEST_CASE("unordered writes of two ranks are found") { expect_race("fault: two ranks", "normalise"); }
TEST_CASE("fault: two ranks", "[.]") { write_from_two_ranks(); }
