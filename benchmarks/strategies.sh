#!/usr/bin/env bash
# benchmarks/strategies.sh [--threads-only] [--ranks 2] [--batch 8] [--micro-batches 4] [--rounds 5] [--steps 6]
#                          [--layers 6] [--heads 6] [--channels 384] [--context 256] [--vocabulary 256]
#
# One GPT trained serially and under each strategy, in turns; then once more with ranks that are processes under MPI.
# targets: benchmark_strategies_threads benchmark_strategies_mpi
set -euo pipefail
mpi=1 ranks=2 options=()
while (($#)); do
  case $1 in
    --threads-only) mpi= ;;
    --ranks) ranks=${2:?--ranks needs a number}; options+=("$1" "$2"); shift ;;
    *) options+=("$1") ;;
  esac
  shift
done
programs=$TRIREME_BINARY_DIR/benchmarks
"$programs/strategies_threads" "${options[@]}"
[[ -n $mpi && -x $programs/strategies_mpi ]] || exit 0
flags=()
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
  flags+=(--oversubscribe --quiet)
  if ((EUID == 0)); then flags+=(--allow-run-as-root); fi
fi
exec mpirun -n "$ranks" "${flags[@]}" "$programs/strategies_mpi" "${options[@]}"
