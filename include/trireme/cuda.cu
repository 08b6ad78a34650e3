// All kernels of the library, for builds without CMake:
//     nvcc -std=c++20 -O2 --expt-relaxed-constexpr -arch=native -I include -c include/trireme/cuda.cu -o trireme_cuda.o
// Link the object, that of trireme/ops/cuda/cudnn.cpp (compiled by your C++ compiler), -lcublasLt, -lcudart and -ldl to
// a program that includes trireme/comm/cuda.hpp or trireme/ops/cuda.hpp; the CMake target trireme::cuda does all of it.
#include "trireme/comm/cuda_kernels.cu"
#include "trireme/ops/cuda/attention.cu"
#include "trireme/ops/cuda/attention_backward.cu"
#include "trireme/ops/cuda/attention_tiles.cu"
#include "trireme/ops/cuda/attention_tiles_backward.cu"
#include "trireme/ops/cuda/kernels.cu"
#include "trireme/ops/cuda/products.cu"
#ifndef TRIREME_SIMT  // whose tests have an answer of their own
#include "trireme/ops/cuda/cublas.cu"
#endif
#include "trireme/ops/cuda/batch_norm.cu"
#include "trireme/ops/cuda/images.cu"
#include "trireme/ops/cuda/latent_heads.cu"
#include "trireme/ops/cuda/codes.cu"
#include "trireme/ops/cuda/low_rank.cu"
#include "trireme/ops/cuda/selection.cu"
#include "trireme/ops/cuda/embedding.cu"
#include "trireme/ops/cuda/norms.cu"
#include "trireme/ops/cuda/paged_attention.cu"
#include "trireme/ops/cuda/heads.cu"
#include "trireme/ops/cuda/losses.cu"
#include "trireme/ops/cuda/routing.cu"
#include "trireme/ops/cuda/whole_tensors.cu"
