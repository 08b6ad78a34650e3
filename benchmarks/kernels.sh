#!/usr/bin/env bash
# benchmarks/kernels.sh [rounds = 9] [only rows that contain this text]
#
# Matrix products compared with Eigen, oneDNN and OpenBLAS; attention, GELU, norms, cross-entropy and AdamW; one thread.
# targets: benchmark_kernels_products benchmark_kernels_layers
# needs: dnnl openblas
set -euo pipefail
if [[ ${1-} == --help || ${1-} == -h ]]; then sed -n '2,/^# targets/{/^# targets/d;s/^# \{0,1\}//p}' "$0"; exit 0; fi
"$TRIREME_BINARY_DIR/benchmarks/kernels_products" "$@"
"$TRIREME_BINARY_DIR/benchmarks/kernels_layers" "$@"
