// The bodies of functions of ops/cuda/attention_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda: attention without tensor cores.
#include "trireme/ops/cuda/attention_launch.cuh"

namespace trireme::ops::cuda_kernels {

int attention(attention_work const& work) {
  if (work.batch == 0 || work.rows == 0) return device::launch_succeeded;
  return for_attention(work, [&]<class T, int D, bool Merges>() {
    if (work.rows == 1 && work.lse == nullptr && !work.merges && work.samples == nullptr) {
      bool const whole = (aligned_rows<T, read_at_once<T>>(work) << work.queries << work.key << work.value).whole();
      return device::run("attention_one_query", &device::attend_one_query<T, D>, work.heads * work.batch,
                         device::attention_tiling<device::real_for<T>, D>::threads, work.stream, work, whole);
    }
    if constexpr (storage_float<T>) {
      if (int code = 0; attention_of_tiles(work, code)) return code;
    }
    using tiling = device::attention_tiling<device::real_for<T>, D>;
    bool const whole = (aligned_rows<T, read_at_once<T>>(work) << work.queries << work.key << work.value).whole();
    auto const dropout = dropout_of(work);
    return device::run("attention", &device::attend<T, D, Merges>,
                       tiles<tiling::rows>(work.rows) * work.heads * work.batch, tiling::threads, work.stream, work,
                       dropout, whole);
  });
}

}  // namespace trireme::ops::cuda_kernels
