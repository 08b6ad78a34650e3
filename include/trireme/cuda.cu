// All kernels of the library, for builds without CMake:
//     nvcc -std=c++20 -O2 --expt-relaxed-constexpr -arch=native -I include -c include/trireme/cuda.cu -o trireme_cuda.o
// Link the object and -lcudart to a program that includes trireme/comm/cuda.hpp or trireme/ops/cuda.hpp; the CMake
// target trireme::cuda does both.
#include "trireme/comm/cuda_kernels.cu"
#include "trireme/ops/cuda/codes.cu"
#include "trireme/ops/cuda/kernels.cu"
#include "trireme/ops/cuda/low_rank.cu"
#include "trireme/ops/cuda/selection.cu"
#include "trireme/ops/cuda/whole_tensors.cu"
