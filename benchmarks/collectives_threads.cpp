// all_reduce of float on comm::threads, 4 KiB to 64 MiB, and the memory limit of this machine.
//   collectives_threads [--ranks 2]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "trireme/comm/comm.hpp"

namespace {

using namespace trireme;
using watch = std::chrono::steady_clock;

double microseconds_since(watch::time_point begin) {
  return std::chrono::duration<double, std::micro>(watch::now() - begin).count();
}

/// The best time of a call, over rounds that all ranks begin together.
template <class World, class Call>
double best_of(World& world, std::int64_t bytes, Call call) {
  int const calls = static_cast<int>(std::clamp<std::int64_t>((1 << 20) / std::max<std::int64_t>(bytes, 64), 1, 2000));
  double best = 1e30;
  for (int round = 0; round < 40; ++round) {
    world.barrier();
    auto const begin = watch::now();
    for (int i = 0; i < calls; ++i) call();
    best = std::min(best, microseconds_since(begin) / calls);
  }
  return best;
}

void row(char const* communicator, char const* operation, std::int64_t bytes, int ranks, double microseconds) {
  double const algbw = static_cast<double>(bytes) / microseconds * 1e-3;
  std::printf(
      "{\"communicator\": \"%s\", \"operation\": \"%s\", \"type\": \"F32\", \"bytes\": %lld, \"ranks\": %d, "
      "\"microseconds\": %.3f, \"algbw\": %.3f, \"busbw\": %.3f}\n",
      communicator, operation, static_cast<long long>(bytes), ranks, microseconds, algbw,
      algbw * 2 * (ranks - 1) / ranks);
  std::fflush(stdout);
}

/// What memory allows: every core adds two streams of its own and writes both in place, the loads and stores of an
/// all_reduce of two ranks without its agreement. `bytes` are all that are read and written, and algbw is theirs: an
/// all_reduce of n bytes on p ranks moves 2 p n.
void memory_limit() {
  auto const cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  launch(comm::threads{.ranks = cores}, [](auto& world) {
    std::int64_t const bytes = 64 << 20;
    tensor<float> a(shape{bytes / 4});
    tensor<float> b(shape{bytes / 4});
    std::ranges::fill(a.span(), 0.0F);
    std::ranges::fill(b.span(), 0.0F);
    tensor_view<float> const outputs[] = {a.view(), b.view()};
    tensor_view<float const> const terms[] = {a.view(), b.view()};
    auto const time = best_of(world, bytes, [&] {
      ops::host_reductions::reduce<float>(outputs, terms);
      world.barrier();
    });
    if (world.rank() != 0) return;
    auto const moved = 4 * bytes * world.size();
    std::printf(
        "{\"communicator\": \"none\", \"operation\": \"memory_limit\", \"type\": \"F32\", \"bytes\": %lld, "
        "\"ranks\": %d, \"microseconds\": %.3f, \"algbw\": %.3f, \"busbw\": %.3f}\n",
        static_cast<long long>(moved), world.size(), time, static_cast<double>(moved) / time * 1e-3,
        static_cast<double>(moved) / time * 1e-3);
  });
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 2;
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], "--ranks") == 0) ranks = std::atoi(argv[i + 1]);
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    std::vector<float> one(1, 0.0F);
    auto const tiny = best_of(world, 4, [&] { world.all_reduce(tensor_view{one}); });
    if (world.rank() == 0) row("threads", "all_reduce", 4, ranks, tiny);
    for (std::int64_t bytes = 4 << 10; bytes <= 64 << 20; bytes *= 4) {
      tensor<float> values(shape{bytes / 4});
      std::ranges::fill(values.span(), 0.0F);
      auto const time = best_of(world, bytes, [&] { world.all_reduce(values.view()); });
      if (world.rank() == 0) row("threads", "all_reduce", bytes, ranks, time);
    }
  });
  memory_limit();
}
