// The kernels of attention, as kernels.cpp has the others.
#include "../../support/simt/threads.hpp"

#include "trireme/ops/cuda/attention.cu"
#include "trireme/ops/cuda/attention_backward.cu"
#include "trireme/ops/cuda/attention_tiles.cu"
#include "trireme/ops/cuda/attention_tiles_backward.cu"
