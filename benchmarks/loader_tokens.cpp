// What a loader costs, without other libraries: one JSON object per row; scripts/benchmark loader starts it.
//   loader_tokens FOLDER [rounds]
//   tokens        windows of 1024 tokens of cached uint16 shards in FOLDER, shuffled, beside a copy of as many bytes as
//                 the loader delivers, from places of an array in memory; both per second of processor time
//   sparse_start  sample 10^9 of a sparse file, from open() to the first batch: samples per second is 1 / that time,
//                 the peer the 10 ms that it may take. The program ends with 1 if it is more, or takes 16 MB of memory
//   decoding_0.8  steps of 20 ms, with samples whose decoding takes 16 ms a step, beside samples that cost nothing

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/rng.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/token_shards.hpp"

using namespace trireme;

namespace {

using steady = std::chrono::steady_clock;
int rounds = 7;

double seconds_since(steady::time_point start) { return std::chrono::duration<double>(steady::now() - start).count(); }
/// Of this process, by all of its threads: other programs have little influence on it.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double median(std::vector<double> of) {
  std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2), of.end());
  return of[of.size() / 2];
}
void row(char const* source, int workers, double rate, char const* peer, double peer_rate, double step_share) {
  std::printf(
      "{\"source\": \"%s\", \"workers\": %d, \"samples_per_second\": %.1f, \"peer\": \"%s\", "
      "\"peer_samples_per_second\": %.1f, \"step_share\": ",
      source, workers, rate, peer, peer_rate);
  step_share < 0 ? std::printf("null}\n") : std::printf("%.4f}\n", step_share);
  std::fflush(stdout);
}

/// Bytes of this process in memory.
double resident_bytes() {
  std::ifstream about("/proc/self/statm");
  double whole = 0, resident = 0;
  about >> whole >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

void tokens(std::string const& folder) {
  constexpr std::int64_t context = 1024, batch = 64, windows = 65536, batches = 256;
  auto const path = folder + "/tokens.bin";
  {
    std::ofstream out(path, std::ios::binary);
    std::vector<std::uint16_t> block(context * 64);
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::uint16_t>(i * 2654435761U >> 16);
    for (std::int64_t i = 0; i < windows / 64; ++i)
      out.write(reinterpret_cast<char const*>(block.data()), static_cast<std::streamsize>(2 * block.size()));
    out.write("\0\0", 2);
  }
  auto const data = data::token_shards{.files = path, .context = context, .kind = data::shard_kind::u16}.open();
  data::loader from(data, {.batch = batch});
  std::vector<char> memory(static_cast<std::size_t>(windows) * context * 8 / 4, 1), to(batch * context * 8);
  auto const places = static_cast<std::int64_t>(memory.size()) / (context * 8);
  std::vector<double> ours, copies;
  for (int round = 0; round <= rounds; ++round) {
    auto start = processor_seconds();
    std::int64_t samples = 0;
    for (std::int64_t i = 0; i < batches; ++i) samples += from.next().samples;
    auto const taken = processor_seconds() - start;
    start = processor_seconds();
    data::sampler const order{.samples = places, .seed = static_cast<std::uint64_t>(round)};
    for (std::int64_t i = 0; i < batches * batch; ++i) {
      auto const place = order.id(0, i % places);
      std::memcpy(to.data() + i % batch * context * 8, memory.data() + place * context * 8, context * 8);
    }
    auto const copied = processor_seconds() - start;
    if (round == 0) continue;  // the file comes into the cache
    ours.push_back(static_cast<double>(samples) / taken);
    copies.push_back(static_cast<double>(batches * batch) / copied);
  }
  row("tokens", 1, median(ours), "memory copy", median(copies), -1);
}

bool sparse_start(std::string const& folder) {
  constexpr std::int64_t windows = 2'000'000'000, sample = 1'000'000'000;
  auto const path = folder + "/sparse.bin";
  std::ofstream(path, std::ios::binary).close();
  if (::truncate(path.c_str(), (windows + 1) * 2 * 64) != 0) {
    std::fprintf(stderr, "loader: no sparse file of %.0f GB can be made in %s\n", windows * 128e-9, folder.c_str());
    return true;
  }
  auto least = 1e9, bytes = 0.0;
  for (int round = 0; round < rounds; ++round) {
    auto const before = resident_bytes();
    auto const start = steady::now();
    auto const data = data::token_shards{.files = path, .context = 64, .kind = data::shard_kind::u16}.open();
    data::loader from(data, {.batch = 1});
    from.seek({0, sample});
    if (from.next().position != sample) return false;
    least = std::min(least, seconds_since(start));
    bytes = std::max(bytes, resident_bytes() - before);
  }
  std::fprintf(stderr, "loader: sample 10^9 of 2 * 10^9 after %.2f ms (the least of %d), in %.2f MB (the most)\n",
               1e3 * least, rounds, 1e-6 * bytes);
  row("sparse_start", 1, 1 / least, "10 ms", 100, -1);
  return least < 0.01 && bytes < 16e6;
}

void compute(double seconds) {
  for (auto const start = steady::now(); seconds_since(start) < seconds;) continue;
}

/// Samples that take a time to decode.
struct encoded {
  double seconds = 0;
  [[nodiscard]] static std::int64_t size() { return 4096; }
  [[nodiscard]] static dtype input_type() { return dtype::f32; }
  [[nodiscard]] static dtype target_type() { return dtype::f32; }
  [[nodiscard]] static shape input_shape() { return {256}; }
  [[nodiscard]] static shape target_shape() { return {}; }
  [[nodiscard]] static bool slow_to_read() { return true; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      compute(seconds);
      std::fill_n(static_cast<float*>(inputs) + 256 * i, 256, 1.0F);
      static_cast<float*>(targets)[i] = 1;
    }
  }
};

void decoding() {
  constexpr double step = 0.02;
  constexpr std::int64_t batch = 16, steps = 50;
  double waited = 0, whole = 0;
  auto const rate_of = [&](encoded const& data, bool counts) {
    data::loader from(data, {.batch = batch, .workers = 1});
    for (int i = 0; i < 3; ++i) {  // until batches are ahead
      static_cast<void>(from.next());
      compute(step);
    }
    auto const start = steady::now();
    auto const before = from.waited();
    for (std::int64_t i = 0; i < steps; ++i) {
      static_cast<void>(from.next());
      compute(step);
    }
    auto const taken = seconds_since(start);
    if (counts) waited += from.waited() - before, whole += taken;
    return static_cast<double>(batch * steps) / taken;
  };
  std::vector<double> with, without;
  for (int round = 0; round < rounds; ++round) {
    with.push_back(rate_of({0.8 * step / static_cast<double>(batch)}, true));
    without.push_back(rate_of({}, false));
  }
  row("decoding_0.8", 1, median(with), "no decoding", median(without), waited / whole);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: loader_tokens FOLDER [rounds]\n");
    return 2;
  }
  if (count > 2) rounds = std::max(1, std::atoi(arguments[2]));
  bool const quick = sparse_start(arguments[1]);  // first, while little memory is in use
  tokens(arguments[1]);
  decoding();
  return quick ? 0 : 1;
}
