#!/usr/bin/env bash
# scripts/benchmark gpu-gpt [--rounds N] [options of benchmarks/gpu/gpt.cpp]
#
# GPT-2 124M on one GPU: training steps of this library and of PyTorch (bfloat16 autocast, torch.compile, fused AdamW,
# benchmarks/gpu/gpt_torch.py) in turns, N times (default: 3). Prints one JSON object a run, and a last one with the
# medians and their ratio. Without a PyTorch for CUDA it measures this library alone.
# targets: benchmark_gpu_gpt
set -euo pipefail
root=$TRIREME_SOURCE_DIR program=$TRIREME_BINARY_DIR/benchmarks/gpu_gpt
python=${TRIREME_PYTHON:-$root/build/venv/bin/python}
[[ -x $python ]] || python=python3
rounds=3 options=() peers=()
while (($#)); do
  case $1 in
    --rounds) rounds=$2 ;;
    --batch | --context | --steps | --warmup) options+=("$1" "$2"); peers+=("$1" "$2") ;;
    *) options+=("$1" "$2") ;;
  esac
  shift 2
done
if [[ ! -x $program ]]; then
  echo "gpu-gpt: benchmark_gpu_gpt was not built: it needs nvcc 12.1 or later, and cuBLASLt" >&2
  exit 1
fi
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
has_torch=0
"$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null && has_torch=1
((has_torch)) || echo "gpu-gpt: $python has no PyTorch for CUDA, so there is no comparison" >&2
for ((round = 0; round < rounds; ++round)); do
  "$program" "${options[@]}" | tee -a "$rows"
  if ((has_torch)); then "$python" "$root/benchmarks/gpu/gpt_torch.py" "${peers[@]}" | tee -a "$rows"; fi
done
"$python" - "$rows" <<'END'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
rates = {}
for row in rows:
    rates.setdefault(row["system"], []).append(row["tokens_per_second"])
of = {system: statistics.median(all) for system, all in rates.items()}
out = {"tokens_per_second": of, "least_and_most": {system: [min(all), max(all)] for system, all in rates.items()}}
if len(of) == 2:
    out["ratio"] = round(of["trireme"] / of["pytorch"], 3)
print(json.dumps(out))
END
