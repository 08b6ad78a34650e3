// All kernels of the library but those of attention (attention_kernels.cpp), as g++ compiles them for the stand-in for
// a GPU's threads. They run on the streams of the stand-in for CUDA's runtime, in their order, when somebody waits for
// a stream.
#include "../../support/simt/threads.hpp"

#include "trireme/comm/cuda_kernels.cu"
#include "trireme/ops/cuda/batch_norm.cu"
#include "trireme/ops/cuda/codes.cu"
#include "trireme/ops/cuda/embedding.cu"
#include "trireme/ops/cuda/heads.cu"
#include "trireme/ops/cuda/images.cu"
#include "trireme/ops/cuda/kernels.cu"
#include "trireme/ops/cuda/latent_heads.cu"
#include "trireme/ops/cuda/losses.cu"
#include "trireme/ops/cuda/low_rank.cu"
#include "trireme/ops/cuda/norms.cu"
#include "trireme/ops/cuda/paged_attention.cu"
#include "trireme/ops/cuda/products.cu"
#include "trireme/ops/cuda/routing.cu"
#include "trireme/ops/cuda/selection.cu"
#include "trireme/ops/cuda/whole_tensors.cu"

#if defined(SIMT_WITHOUT_ATTENTION)  // as the sanitizers' tests are; its kernels take them three minutes
#include "trireme/ops/cuda/attention_launch.hpp"

int trireme::ops::cuda_kernels::attention(attention_work const&) { return detail::device::launch_refused; }
int trireme::ops::cuda_kernels::attention_backward(attention_work const&) { return detail::device::launch_refused; }
#endif

namespace stand_in {

void queue_kernel(void* stream, std::function<void()> kernel);

}  // namespace stand_in

namespace {

[[maybe_unused]] bool const on_streams = (simt::queue_on = &stand_in::queue_kernel, true);

}  // namespace
