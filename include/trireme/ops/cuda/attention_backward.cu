// The bodies of functions of ops/cuda/attention_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda: its gradients without tensor cores.
#include "trireme/ops/cuda/attention_launch.cuh"

namespace trireme::ops::cuda_kernels {

int attention_backward(attention_work const& work) {
  if (work.batch == 0 || work.rows == 0) return device::launch_succeeded;
  return for_attention(work, [&]<class T, int D, bool Merges>() {
    if constexpr (storage_float<T>) {
      if (int code = 0; attention_backward_of_tiles(work, code)) return code;
    }
    using tiling = device::attention_tiling<device::real_for<T>, D>;
    bool const whole =
        (aligned_rows<T, read_at_once<T>>(work) << work.queries << work.key << work.value << work.dy << work.y).whole();
    auto const dropout = dropout_of(work);
    auto const code = device::run("attention_backward_queries", &device::attend_backward_queries<T, D, Merges>,
                                  tiles<tiling::rows>(work.rows) * work.heads * work.batch, tiling::threads,
                                  work.stream, work, dropout, whole);
    if (code != device::launch_succeeded) return code;
    return device::run("attention_backward_keys", &device::attend_backward_keys<T, D, Merges>,
                       tiles<tiling::rows>(work.keys) * work.heads * work.batch, tiling::threads, work.stream, work,
                       dropout, whole);
  });
}

}  // namespace trireme::ops::cuda_kernels
