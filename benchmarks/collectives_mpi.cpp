// all_reduce of float under mpirun: comm::mpi beside the MPI library's own MPI_Allreduce on the same buffers.
//   mpirun -n 2 collectives_mpi
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "trireme/comm/mpi.hpp"

namespace {

using namespace trireme;
using watch = std::chrono::steady_clock;

template <class World, class Call>
double best_of(World& world, std::int64_t bytes, Call call) {
  int const calls = static_cast<int>(std::clamp<std::int64_t>((1 << 20) / std::max<std::int64_t>(bytes, 64), 1, 1000));
  double best = 1e30;
  for (int round = 0; round < 20; ++round) {
    world.barrier();
    auto const begin = watch::now();
    for (int i = 0; i < calls; ++i) call();
    best = std::min(best, std::chrono::duration<double, std::micro>(watch::now() - begin).count() / calls);
  }
  return best;
}

void row(char const* communicator, std::int64_t bytes, int ranks, double microseconds) {
  double const algbw = static_cast<double>(bytes) / microseconds * 1e-3;
  std::printf(
      "{\"communicator\": \"%s\", \"operation\": \"all_reduce\", \"type\": \"F32\", \"bytes\": %lld, "
      "\"ranks\": %d, \"microseconds\": %.3f, \"algbw\": %.3f, \"busbw\": %.3f}\n",
      communicator, static_cast<long long>(bytes), ranks, microseconds, algbw, algbw * 2 * (ranks - 1) / ranks);
  std::fflush(stdout);
}

}  // namespace

int main() {
  launch(comm::mpi{}, [](auto& world) {
    for (std::int64_t bytes = 4; bytes <= 64 << 20; bytes = bytes == 4 ? 4 << 10 : 4 * bytes) {
      tensor<float> values(shape{bytes / 4});
      std::ranges::fill(values.span(), 0.0F);
      auto const ours = best_of(world, bytes, [&] { world.all_reduce(values.view()); });
      // With no request in flight, MPI is the caller's alone.
      auto const theirs = best_of(world, bytes, [&] {
        MPI_Allreduce(MPI_IN_PLACE, values.span().data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
      });
      if (world.rank() != 0) continue;
      row("mpi", bytes, world.size(), ours);
      row("MPI_Allreduce", bytes, world.size(), theirs);
    }
  });
}
