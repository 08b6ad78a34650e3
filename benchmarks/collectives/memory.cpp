// Measures the limit of memory: threads that read and write what a collective in shared memory must, and never wait for
// each other. An all_reduce of n bytes on p ranks reads and writes 2 p n.
//   collectives_memory FOLDER SIZE
#include <barrier>
#include <thread>
#include <vector>

#include "player.hpp"

namespace {

using namespace player;

using lanes [[gnu::vector_size(64)]] = float;

/// outputs[...][i] = the sum of terms[...][i]; whole lanes, as wide as the CPU supports.
[[gnu::target_clones("avx512f", "avx2", "default")]] void add(std::vector<lanes*> const& outputs,
                                                              std::vector<lanes*> const& terms, std::size_t count) {
  if (terms.size() == 2 && outputs.size() == 2) {
    lanes* const a = terms[0];
    lanes* const b = terms[1];
    for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    lanes total = terms[0][i];
    for (std::size_t k = 1; k < terms.size(); ++k) total += terms[k][i];
    for (auto* const output : outputs) output[i] = total;
  }
}

struct shared_state {
  explicit shared_state(int ranks)
      : size(ranks), from(static_cast<std::size_t>(ranks)), to(static_cast<std::size_t>(ranks)), together(ranks) {}
  int size;
  std::vector<std::byte*> from;
  std::vector<std::byte*> to;
  std::barrier<> together;
};

struct memory_calls {
  shared_state& all;
  int rank;
  int workers;  // more ranks than cores: the first ones do the work of all
  pages blocks[2] = {};

  std::byte* allocate(int index, std::size_t bytes) {
    blocks[index] = pages(bytes);
    return blocks[index].data();
  }
  void release() {
    barrier();  // the others may still read
    for (auto& block : blocks) block = pages();
  }
  void barrier() { all.together.arrive_and_wait(); }

  prepared prepare(task const& it, std::byte* from, std::byte* to) {
    all.from[static_cast<std::size_t>(rank)] = from;
    all.to[static_cast<std::size_t>(rank)] = to;
    barrier();
    return {[this, it] {
              for (int part = rank; part < all.size && rank < workers; part += workers)
                pass(it, static_cast<std::size_t>(part));
            },
            to, false};
  }

  void pass(task const& it, std::size_t part) const {
    auto const size = static_cast<std::size_t>(all.size);
    auto const lines = (it.bytes + 63) / 64;
    auto const begin = lines * part / size * 64;
    auto const end = lines * (part + 1) / size * 64;
    auto const at = [&](std::byte* base, std::size_t offset) { return reinterpret_cast<lanes*>(base + offset); };
    switch (it.what) {
      case operation::all_reduce:
      case operation::reduce_scatter: {
        thread_local std::vector<lanes*> terms;
        thread_local std::vector<lanes*> outputs;
        terms.clear();
        for (auto* const base : all.from) terms.push_back(at(base, begin));
        outputs = it.what == operation::all_reduce ? terms : std::vector{terms[part]};
        return add(outputs, terms, (end - begin) / 64);
      }
      case operation::all_gather:
        for (std::size_t other = 0; other < size; ++other) {
          auto const first = lines * other / size * 64;
          auto const last = lines * (other + 1) / size * 64;
          if (other != part) std::memcpy(all.to[part] + first, all.from[other] + first, last - first);
        }
        return;
      case operation::all_to_all:
        for (std::size_t other = 0; other < size; ++other)
          std::memcpy(all.to[part] + lines * other / size * 64, all.from[other] + begin, end - begin);
        return;
      case operation::broadcast:
        for (std::size_t other = 1; other < size; ++other)
          std::memcpy(all.to[other] + begin, all.from[0] + begin, end - begin);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  int const size = std::atoi(argv[2]);
  shared_state all(size);
  std::vector<std::thread> ranks;
  auto const cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      memory_calls calls{all, rank, std::min(size, cores)};
      play(argv[1], rank, size, calls);
    });
  for (auto& rank : ranks) rank.join();
}
