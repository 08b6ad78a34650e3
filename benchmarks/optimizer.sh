#!/usr/bin/env bash
# benchmarks/optimizer.sh [--rounds 3] [--ours-only]
#
# Reduce + AdamW: fused, sharded and replicated, alternating with PyTorch's fused AdamW (which exchanges nothing).
# targets: benchmark_optimizer_threads
set -euo pipefail
rounds=3 peer=1
while (($#)); do
  case $1 in
    --rounds) rounds=${2:?--rounds needs a number}; shift ;;
    --ours-only) peer= ;;
    *) echo "optimizer: what is \"$1\"?" >&2; exit 2 ;;
  esac
  shift
done
python=${TRIREME_PYTHON:-$TRIREME_SOURCE_DIR/build/venv/bin/python}
if [[ -n $peer ]] && ! "$python" -c 'import torch' 2>/dev/null; then
  echo "optimizer: no PyTorch for $python (scripts/benchmark gpt installs it); its rows are left out" >&2
  peer=
fi
for ((round = 0; round < rounds; ++round)); do
  "$TRIREME_BINARY_DIR/benchmarks/optimizer_threads"
  [[ -z $peer ]] || "$python" "$TRIREME_SOURCE_DIR/benchmarks/optimizer_torch.py"
done
