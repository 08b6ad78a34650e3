// The bodies of functions of ops/cuda/attention_launch.cuh, compiled by the nvcc of the user as a part of
// trireme::cuda: attention by products of tiles, on tensor cores.
#include "trireme/ops/cuda/attention_launch.cuh"
#include "trireme/ops/cuda/attention_tiles.cuh"

namespace trireme::ops::cuda_kernels {

namespace {

template <class T>
int launch_tiles(attention_work const& work) {
  return for_tiles(work, [&]<int D, bool Drops>() {
    using tiled = device::tiled_attention<D>;
    auto const dropout = dropout_of(work);
    return device::run("attention_tiles", &device::attend_tiles<T, D, Drops>,
                       tiles<tiled::query_rows>(work.rows) * work.heads * work.batch, tiled::threads, work.stream, work,
                       dropout);
  });
}

}  // namespace

bool attention_of_tiles(attention_work const& work, int& code) {
  bool takes = false;
  auto const launched = device::for_floats(work.of, [&]<class T>(T) {
    if constexpr (storage_float<T>) {
      static bool const there = device::products_of_tiles(&device::attend_tiles<T, 64, false>);
      takes = takes_tiles<T>(work, false, there);
      if (takes) return launch_tiles<T>(work);
    }
    return device::launch_succeeded;
  });
  code = launched;
  return takes;
}

}  // namespace trireme::ops::cuda_kernels
