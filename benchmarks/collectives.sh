#!/usr/bin/env bash
# benchmarks/collectives.sh [--ranks 2]
#
# all_reduce of float, 4 KiB to 64 MiB: comm::threads and the memory limit, then comm::mpi beside Open MPI's own call.
# targets: benchmark_collectives_threads benchmark_collectives_mpi
set -euo pipefail
ranks=2
while (($#)); do
  case $1 in
    --ranks) ranks=${2:?--ranks needs a number}; shift ;;
    *) echo "collectives: what is \"$1\"?" >&2; exit 2 ;;
  esac
  shift
done
programs=$TRIREME_BINARY_DIR/benchmarks
"$programs/collectives_threads" --ranks "$ranks"
[[ -x $programs/collectives_mpi ]] || { echo "collectives: Open MPI was not found; its rows are left out" >&2; exit 0; }
flags=(--oversubscribe)
((EUID == 0)) && flags+=(--allow-run-as-root)
mpirun -n "$ranks" "${flags[@]}" "$programs/collectives_mpi"
