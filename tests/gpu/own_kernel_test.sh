#!/usr/bin/env bash
# examples/cuda_own_kernel where there is no GPU: one sentence that says so, and exit code 77.
set -uo pipefail
program=$TRIREME_BINARY_DIR/examples/cuda_own_kernel
if [[ ! -x $program ]]; then
  echo "skipped: no CUDA, so examples/cuda_own_kernel is not built"
  exit 77
fi
CUDA_VISIBLE_DEVICES='' "$program" >told 2>&1
status=$?
cat told
if ((status != 77)) || (($(wc -l <told) != 1)) || ! grep -q '^cuda_own_kernel: there is no GPU here (.*); ' told; then
  echo "exit code $status, and the line above; expected 77 and one sentence"
  exit 1
fi
