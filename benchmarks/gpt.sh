#!/usr/bin/env bash
# benchmarks/gpt.sh [options]
#
# Training steps of GPT-2, or another model, with trireme (MODEL_step) and with PyTorch's DDP (gpt_torch.py), run
# alternately so that both have the same conditions. Prints one JSON object per line: a row for each run, then a row
# with the medians, the ratio trireme / PyTorch of the rounds (median, lowest, highest), and the spread of each system's
# runs.
#
#   --model gpt|llama|bert  (default gpt)
#   --shape a|b             a: 6 layers x 384 channels, context 256, vocabulary 256, 8 texts per rank (default)
#                           b: GPT-2 124M, context 1024, 1 text per rank (llama: SmolLM2 135M, the same; bert: BERT
#                              base, context 512, 2 texts)
#   --precision fp32|bf16   (default fp32)
#   --rounds N              runs of each (5); the first one changes from round to round
#   --steps N --warmup N    measured and unmeasured steps of a run (a: 20 and 5, b: 4 and 2)
#   --ours-only             without PyTorch
#
# The interpreter is $TRIREME_PYTHON, else build/venv/bin/python; if that does not exist, build/venv is made and the
# newest torch is installed there.
# targets: benchmark_gpt_step
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/scripts/install.bash"

model=gpt shape=a precision=fp32 rounds=5 steps='' warmup='' ours_only=0
fail() { echo "gpt.sh: $1" >&2; exit 2; }
while (($#)); do
  case $1 in
    --model | --shape | --precision | --rounds | --steps | --warmup)
      (($# > 1)) || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift ;;
    --ours-only) ours_only=1 ;;
    --help | -h) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) fail "unknown option $1 (see --help)" ;;
  esac
  shift
done
[[ $model =~ ^(gpt|llama|bert)$ ]] || fail "--model is gpt, llama or bert, not '$model'"
[[ $shape == [ab] ]] || fail "--shape is a or b, not '$shape'"
[[ $precision == fp32 || $precision == bf16 ]] || fail "--precision is fp32 or bf16, not '$precision'"
if [[ $shape == a ]]; then : "${steps:=20}" "${warmup:=5}"; else : "${steps:=4}" "${warmup:=2}"; fi
for number in "$rounds" "$steps"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || fail "--rounds and --steps are numbers from 1, not '$number'"
done
[[ $warmup =~ ^[0-9]+$ ]] || fail "--warmup is a number, not '$warmup'"

log=$root/build/gpt_benchmark.log
mkdir -p "$root/build"
: >"$log"
# logged WHAT COMMAND...: standard output is kept for the rows.
logged() {
  local what=$1
  shift
  "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "gpt.sh: $what failed; all of it is in $log" >&2; exit 1; }
}

program=$root/build/benchmark/benchmarks/${model}_step
build() {
  (cd "$root" && { [[ -e build/benchmark/CMakeCache.txt ]] || cmake --preset benchmark; } &&
    cmake --build build/benchmark --target "benchmark_${model}_step")
}
if command -v cmake >/dev/null && command -v ninja >/dev/null || [[ ! -x $program ]]; then
  need_compiler
  logged 'installing what a build needs' install_missing
  logged "building ${model}_step" build
fi

python=${TRIREME_PYTHON:-}
if ((!ours_only)) && [[ -z $python ]]; then
  python=$root/build/venv/bin/python
  if ! "$python" -c 'import torch' 2>/dev/null; then
    need python3 python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing_packages+=(python3-venv)
    logged 'installing Python' install_missing
    [[ -x $python ]] || logged 'making build/venv' python3 -m venv "$root/build/venv"
    logged 'installing torch' "$python" -m pip install --quiet --upgrade torch numpy
  fi
fi
((ours_only)) || "$python" -c 'import torch' 2>>"$log" || fail "$python cannot import torch (see $log)"

arguments=(--model "$model" --shape "$shape" --precision "$precision" --steps "$steps" --warmup "$warmup")
speed_of() { sed -nE 's/.*"tokens_per_second": *([0-9.eE+]+).*/\1/p' <<<"$1"; }
ours=() peers=()
# measure ARRAY COMMAND...: prints the row of a run, and keeps its speed.
measure() {
  local -n speeds=$1
  shift
  local row speed
  row=$("$@" 2>>"$log") || { tail -n 20 "$log" >&2; echo "gpt.sh: $1 failed; its messages are in $log" >&2; exit 1; }
  row=$(grep '"tokens_per_second"' <<<"$row" | tail -n 1) || true
  speed=$(speed_of "$row")
  [[ -n $speed ]] || { echo "gpt.sh: $1 printed no tokens_per_second" >&2; exit 1; }
  speeds+=("$speed")
  echo "$row"
}
for ((round = 0; round < rounds; ++round)); do
  if ((ours_only)); then
    measure ours "$program" "${arguments[@]}"
  elif ((round % 2 == 0)); then
    measure ours "$program" "${arguments[@]}"
    measure peers "$python" "$root/benchmarks/gpt_torch.py" "${arguments[@]}"
  else
    measure peers "$python" "$root/benchmarks/gpt_torch.py" "${arguments[@]}"
    measure ours "$program" "${arguments[@]}"
  fi
done

# The median, and (highest - lowest) / median.
LC_ALL=C awk -v model="$model" -v shape="$shape" -v precision="$precision" -v ours="${ours[*]}" \
  -v peers="${peers[*]:-}" '
  function order(list, n,    i, j, x) {
    for (i = 2; i <= n; ++i) {
      x = list[i]
      for (j = i - 1; j >= 1 && list[j] > x; --j) list[j + 1] = list[j]
      list[j + 1] = x
    }
  }
  function median(list, n) { return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
  BEGIN {
    n = split(ours, a); m = split(peers, b)
    for (i = 1; i <= n; ++i) { a[i] += 0; if (m) { b[i] += 0; ratio[i] = a[i] / b[i] } }
    order(a, n)
    printf "{\"row\": \"summary\", \"model\": \"%s\", \"shape\": \"%s\", ", model, shape
    printf "\"precision\": \"%s\", \"rounds\": %d, ", precision, n
    printf "\"trireme_tokens_per_second\": %.1f, \"trireme_spread\": %.3f", median(a, n), (a[n] - a[1]) / median(a, n)
    if (m) {
      order(b, m); order(ratio, m)
      printf ", \"pytorch_tokens_per_second\": %.1f", median(b, m)
      printf ", \"pytorch_spread\": %.3f", (b[m] - b[1]) / median(b, m)
      printf ", \"ratio_median\": %.3f, \"ratio_lowest\": %.3f, \"ratio_highest\": %.3f", median(ratio, m), ratio[1],
             ratio[m]
    }
    print "}"
  }'
