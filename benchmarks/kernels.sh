#!/usr/bin/env bash
# benchmarks/kernels.sh
#
# Matrix products beside Eigen, oneDNN and OpenBLAS; attention, GELU, norms, cross-entropy and AdamW: one thread each.
# targets: benchmark_kernels_products benchmark_kernels_layers
# needs: dnnl openblas
set -euo pipefail
"$TRIREME_BINARY_DIR/benchmarks/kernels_products" "$@"
"$TRIREME_BINARY_DIR/benchmarks/kernels_layers"
