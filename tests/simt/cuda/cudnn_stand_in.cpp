// What ops/cuda/cudnn_launch.hpp declares, where there is no cuDNN: nothing is taken.
#include "trireme/ops/cuda/cudnn_launch.hpp"

namespace trireme::ops::cuda_kernels {

bool cudnn_takes(attention_call const&) { return false; }
std::size_t cudnn_workspace(attention_call const&, bool) { return 0; }
int cudnn_attention(attention_call const&, void*) { return 1; }
int cudnn_attention_backward(attention_call const&, void*) { return 1; }

}  // namespace trireme::ops::cuda_kernels
