// comm::threads with 2 and 4 ranks on one GPU, compared with the limit of its memory: every element is read and written
// once per rank, so n bytes take 2 p n / bandwidth. The bandwidth is that of a copy on the device, counting bytes read
// and written.
//   cuda [MOST_BYTES]    one JSON object per row
#include <cstdlib>

#include "cuda_rows.hpp"
#include "trireme/comm/launch.hpp"

using trireme::cuda;

namespace {

/// Bytes    per microsecond read and written by a copy of 1 GiB.
double copy_bandwidth() {
  std::int64_t const bytes = std::int64_t{1} << 30;
  trireme::tensor<std::byte, cuda> const from({bytes});
  trireme::tensor<std::byte, cuda> const to({bytes});
  auto const copy = [&] {
    trireme::detail::expect_cuda(
        cudaMemcpyAsync(to.view().address(), from.view().address(), static_cast<std::size_t>(bytes),
                        cudaMemcpyDeviceToDevice, cuda::stream()),
        "the copy");
  };
  return 2 * static_cast<double>(bytes) / cuda_rows::microseconds(8, copy, [] { cuda::finish(); });
}

template <class World>
void measure(World& world, std::int64_t most, double bandwidth) {
  int const ranks = world.size();
  trireme::tensor<float, cuda> const buffer({most / 4});
  trireme::detail::expect_cuda(
      cudaMemsetAsync(buffer.view().address(), 0, static_cast<std::size_t>(most), cuda::stream()), "the zeros");
  for (std::int64_t bytes = 16; bytes <= most; bytes *= 4) {
    auto const values = buffer.view().flat(0, bytes / 4);
    auto const row = [&](char const* operation, double limit_bytes, auto call) {
      auto const time = cuda_rows::microseconds(cuda_rows::calls_for(bytes, ranks), call, [&] { world.barrier(); });
      if (world.rank() != 0) return;
      cuda_rows::row("threads_cuda", operation, bytes, ranks, time);
      cuda_rows::row("memory_limit_cuda", operation, bytes, ranks, limit_bytes / bandwidth);
    };
    auto const n = static_cast<double>(bytes);
    row("all_reduce", 2 * ranks * n, [&] { world.all_reduce(values); });
    row("reduce_scatter", (ranks + 1) * n, [&] { world.reduce_scatter(values); });
    row("all_gather", 2 * (ranks - 1) * n, [&] { world.all_gather(values); });
    row("broadcast", 2 * (ranks - 1) * n, [&] { world.broadcast(values, 0); });
  }
}

}  // namespace

int main(int count, char** words) {
  if (auto const reason = cuda_rows::reason_to_skip(); !reason.empty()) {
    std::printf("skipped: no GPU: %s\n", reason.c_str());
    return 77;
  }
  auto const most = count > 1 ? std::atoll(words[1]) : std::int64_t{256} << 20;
  auto const bandwidth = copy_bandwidth();
  std::printf("# a copy on the device reads and writes %.0f GB/s\n", bandwidth / 1e3);
  for (int const ranks : {2, 4})
    trireme::launch(trireme::comm::threads{.ranks = ranks}, [&](auto& world) { measure(world, most, bandwidth); });
}
