#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

/// One communicator in the benchmark of collectives: ranks that sleep until they get a task.
///
/// Rank r reads lines  OPERATION TYPE BYTES CALLS ROUNDS KEEP  from the pipe FOLDER/r, and writes a line for each to
/// FOLDER/out:
///   r MICROSECONDS...   of one call, for each round: a barrier, then CALLS calls
///   r lacks             the communicator has no such call
///   r wrong             the first call gave a wrong result
///   r failed: SENTENCE  something threw; the rank ends
/// A rank ends when its pipe is closed. This header needs only the standard library, since other libraries are
/// measured, too.
namespace player {

enum class operation : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast };
enum class element : std::uint8_t { f32, bf16 };

/// One measurement. `bytes` are those of the whole view; only all_to_all has two buffers.
struct task {
  operation what = operation::all_reduce;
  element type = element::f32;
  std::size_t bytes = 0;
  [[nodiscard]] std::size_t element_bytes() const noexcept { return type == element::f32 ? 4 : 2; }
  [[nodiscard]] std::size_t count() const noexcept { return bytes / element_bytes(); }
  friend bool operator==(task const&, task const&) = default;
};

/// The call to be timed (empty: the communicator does not have it), and the place of its result: the rank's slice of
/// reduce_scatter, otherwise the whole.
struct prepared {
  std::function<void()> call;
  std::byte* result = nullptr;
  bool agrees = true;  ///< the ranks wait for each other, so the first result can be checked
};

/// Memory as a careful user would allocate it: in huge pages if it is large.
class pages {
 public:
  pages() = default;
  explicit pages(std::size_t bytes) : bytes_((bytes + huge - 1) / huge * huge) {
    auto* const block = mmap(nullptr, bytes_ + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::runtime_error("no memory for the buffers");
    block_ = static_cast<std::byte*>(block);
    if (bytes >= huge) madvise(data(), bytes_, MADV_HUGEPAGE);
  }
  pages(pages&& other) noexcept : block_(std::exchange(other.block_, nullptr)), bytes_(other.bytes_) {}
  pages& operator=(pages&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~pages() {
    if (block_ != nullptr) munmap(block_, bytes_ + huge);
  }
  [[nodiscard]] std::byte* data() const noexcept {
    return block_ + (huge - reinterpret_cast<std::uintptr_t>(block_) % huge) % huge;
  }

 private:
  static constexpr std::size_t huge = 2U << 20;
  std::byte* block_ = nullptr;
  std::size_t bytes_ = 0;
};

/// If TRIREME_PIN is set, binds this thread to the core of its rank.
inline void pin(int rank) {
  if (std::getenv("TRIREME_PIN") == nullptr) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(rank % static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

namespace detail {

// Small integers are exact in both types.
inline void store(std::byte* values, std::size_t at, element type, float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  auto const upper = static_cast<std::uint16_t>(bits >> 16);
  if (type == element::f32)
    std::memcpy(values + 4 * at, &value, 4);
  else
    std::memcpy(values + 2 * at, &upper, 2);
}
inline float load(std::byte const* values, std::size_t at, element type) {
  std::uint32_t bits = 0;
  std::uint16_t upper = 0;
  if (type == element::f32) {
    std::memcpy(&bits, values + 4 * at, 4);
  } else {
    std::memcpy(&upper, values + 2 * at, 2);
    bits = static_cast<std::uint32_t>(upper) << 16;
  }
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float given(task const& it, int rank, int slice, int size) {
  return static_cast<float>(it.what == operation::all_to_all ? rank * size + slice + 1 : rank + 1);
}
inline float expected(task const& it, int rank, int slice, int size) {
  switch (it.what) {
    case operation::all_reduce:
    case operation::reduce_scatter:
      return static_cast<float>(size * (size + 1) / 2);
    case operation::all_gather:
      return given(it, slice, slice, size);
    case operation::all_to_all:
      return given(it, slice, rank, size);
    case operation::broadcast:
      return given(it, 0, slice, size);
  }
  return 0;
}

/// Makes the first call on known values and checks about a thousand elements of its result.
inline bool right(task const& it, std::byte* from, std::byte const* result, int rank, int size,
                  std::function<void()> const& call) {
  auto const count = it.count();
  auto const each = std::max<std::size_t>(1, count / static_cast<std::size_t>(size));
  auto const slice = [&](std::size_t at) { return std::min(static_cast<int>(at / each), size - 1); };
  for (std::size_t at = 0; at < count; ++at) store(from, at, it.type, given(it, rank, slice(at), size));
  call();
  auto const results = it.what == operation::reduce_scatter ? each : count;
  auto const step = std::max<std::size_t>(1, results / 1000);
  for (std::size_t at = 0; at < results; at = at + 1 == results ? results : std::min(at + step, results - 1))
    if (load(result, at, it.type) != expected(it, rank, slice(at), size)) return false;
  return true;
}

inline task parse(std::string const& what, std::string const& type, std::size_t bytes) {
  static constexpr char const* names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"};
  auto const* const found = std::find(std::begin(names), std::end(names), what);
  if (found == std::end(names) || (type != "f32" && type != "bf16"))
    throw std::runtime_error("unknown \"" + what + " " + type + "\"");
  return {static_cast<operation>(found - std::begin(names)), type == "f32" ? element::f32 : element::bf16, bytes};
}

}  // namespace detail

/// Runs one rank. `Calls` has
///   allocate(index, bytes) -> std::byte*    buffer 0 or 1, which lives until release()
///   release()
///   barrier()
///   prepare(task, from, to) -> prepared
template <class Calls>
void play(std::string const& folder, int rank, int size, Calls& calls) {
  using watch = std::chrono::steady_clock;
  pin(rank);
  std::ifstream turns(folder + "/" + std::to_string(rank));
  int const out = open((folder + "/out").c_str(), O_WRONLY | O_CLOEXEC);
  auto const answer = [&](std::string text) {
    text = std::to_string(rank) + " " + text.substr(0, 2000) + "\n";
    if (write(out, text.data(), text.size()) < 0) throw std::runtime_error("the driver has ended");
  };
  try {
    task current;
    prepared ready;
    std::string line;
    while (std::getline(turns, line)) {
      std::istringstream words(line);
      std::string what;
      std::string type;
      std::size_t bytes = 0;
      int count = 0;
      int rounds = 0;
      int keep = 0;
      words >> what >> type >> bytes >> count >> rounds >> keep;
      auto const it = detail::parse(what, type, bytes);
      bool good = true;
      if (it != current) {
        ready = {};
        calls.release();
        auto* const from = calls.allocate(0, bytes);
        auto* const to = it.what == operation::all_to_all ? calls.allocate(1, bytes) : from;
        std::memset(to, 0, bytes);
        ready = calls.prepare(it, from, to);
        current = it;
        if (ready.call && ready.agrees) good = detail::right(it, from, ready.result, rank, size, ready.call);
        std::memset(from, 0, bytes);  // so that repeated sums stay finite
      }
      std::string times;
      auto const& call = ready.call;
      if (!call) {
        times = "lacks";
      } else {
        for (int i = 0; i < std::max(1, std::min(count / 10, 10)); ++i) call();
        for (int round = 0; round < rounds; ++round) {
          calls.barrier();
          auto const begin = watch::now();
          for (int i = 0; i < count; ++i) call();
          times +=
              std::to_string(std::chrono::duration<double, std::micro>(watch::now() - begin).count() / count) + " ";
        }
        calls.barrier();
      }
      if (keep == 0) {
        ready = {};
        calls.release();
        current = {};
      }
      answer(good ? times : "wrong");
    }
    ready = {};
    calls.release();
  } catch (std::exception const& error) {
    answer(std::string("failed: ") + error.what());
    throw;
  }
}

}  // namespace player
