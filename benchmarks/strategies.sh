#!/usr/bin/env bash
# benchmarks/strategies.sh [--threads-only] [--ranks 2] [--batch 8] [--micro-batches 4] [--rounds 5] [--steps 6]
#                          [--layers 6] [--heads 6] [--channels 384] [--context 256] [--vocabulary 256]
#
# One GPT trained serially and under each strategy, alternating; then again with ranks that are processes under MPI.
# targets: benchmark_strategies_threads benchmark_strategies_mpi
# needs: mpi
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
source "$TRIREME_SOURCE_DIR/scripts/mpirun.bash"
exec mpirun -n "$ranks" "$programs/strategies_mpi" "${options[@]}"
