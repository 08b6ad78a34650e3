#!/usr/bin/env bash
# test-timeout: 240
# examples/torch_ddp as its first lines say: as threads, under mpirun, and under torchrun where Python has it. Two
# worlds of one rank would say everything twice.
set -uo pipefail
program=$TRIREME_BINARY_DIR/examples/torch_ddp
if [[ ! -x $program ]]; then
  echo "skipped: no $program, because this build has no LibTorch"
  exit 77
fi
failures=0
# learns HOW COMMAND...: its output is then in the file HOW.
learns() {
  local how=$1 lines
  shift
  if ! OMP_NUM_THREADS=1 "$@" >"$how" 2>"$how.errors"; then
    echo "$how has failed"
    cat "$how.errors"
    failures=$((failures + 1))
    return
  fi
  lines=$(sed -nE 's/^step ([0-9]+) loss .*/\1/p' "$how" | tr '\n' ' ')
  [[ $lines == '20 40 60 80 100 ' ]] || { echo "$how: the steps are told of as $lines"; failures=$((failures + 1)); }
  awk '/^step 100 / { last = $4 } END { exit !(last < 0.3) }' "$how" ||  # ln 4 = 1.39 without having learnt
    { echo "$how: nothing was learnt"; cat "$how"; failures=$((failures + 1)); }
}
learns threads "$program" 2
launched=0
if command -v mpirun >/dev/null; then
  learns mpirun mpirun -n 2 "$program"
  launched=$((launched + 1))
fi
python=${TRIREME_PYTHON:-python3}
if "$python" -c 'import torch.distributed.run' 2>/dev/null; then
  learns torchrun "$python" -m torch.distributed.run --no-python --nproc-per-node 2 "$program"
  launched=$((launched + 1))
else
  echo "not tested: torchrun, because $python has no torch"
fi
if ((launched == 2)) && ! diff mpirun torchrun; then
  echo "processes of mpirun and of torchrun, with the same seeds, have learnt something else"
  failures=$((failures + 1))
fi
exit $((failures > 0))
