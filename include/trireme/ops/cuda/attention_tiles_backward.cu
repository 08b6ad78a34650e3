// The bodies of functions of ops/cuda/attention_launch.cuh, compiled by the nvcc of the user as a part of
// trireme::cuda: its gradients by products of tiles, on tensor cores.
#include "trireme/ops/cuda/attention_launch.cuh"
#include "trireme/ops/cuda/attention_tiles.cuh"

namespace trireme::ops::cuda_kernels {

namespace {

template <class T>
int launch_backward_tiles(attention_work const& work) {
  return for_tiles(work, [&]<int D, bool Drops>() {
    using tiled = device::tiled_attention<D>;
    auto const dropout = dropout_of(work);
    auto const code = device::run("attention_tiles_queries", &device::attend_tiles_backward_queries<T, D, Drops>,
                                  tiles<tiled::query_rows>(work.rows) * work.heads * work.batch, tiled::threads,
                                  work.stream, work, dropout);
    if (code != device::launch_succeeded) return code;
    return device::run("attention_tiles_keys", &device::attend_tiles_backward_keys<T, D, Drops>,
                       tiles<tiled::key_rows>(work.keys) * work.heads * work.batch, tiled::threads, work.stream, work,
                       dropout);
  });
}

}  // namespace

bool attention_backward_of_tiles(attention_work const& work, int& code) {
  bool takes = false;
  auto const launched = device::for_floats(work.of, [&]<class T>(T) {
    if constexpr (storage_float<T>) {
      static bool const there = device::products_of_tiles(&device::attend_tiles_backward_queries<T, 64, false>);
      takes = takes_tiles<T>(work, true, there);
      if (takes) return launch_backward_tiles<T>(work);
    }
    return device::launch_succeeded;
  });
  code = launched;
  return takes;
}

}  // namespace trireme::ops::cuda_kernels
