#!/usr/bin/env bash
# scripts/benchmark gpu-kernels [text]
#
# The kernels of CUDA memory at the sizes of GPT-2 124M with 64 x 1024 tokens: products in TFLOP/s, the others in GB/s
# and as a ratio to a copy on the device in the same run; then attention, by cuDNN and by this library's own kernels.
# With a text only the rows of benchmarks/gpu/kernels.cpp whose names contain it. One JSON object a row.
# targets: benchmark_gpu_kernels benchmark_gpu_attention benchmark_gpu_own_attention
set -euo pipefail
programs=$TRIREME_BINARY_DIR/benchmarks
if [[ ! -x $programs/gpu_kernels ]]; then
  echo "gpu-kernels: benchmark_gpu_kernels was not built: it needs nvcc 12.1 or later, and cuBLASLt" >&2
  exit 1
fi
"$programs/gpu_kernels" "$@"
(($#)) && exit
"$programs/gpu_attention" || echo "gpu-kernels: attention by cuDNN was not measured" >&2
"$programs/gpu_own_attention"
