#!/usr/bin/env bash
# A rank that is late, stopped, throws, or calls something else must become an error on all others, in time, that
# names it.
set -u
command -v mpicxx mpirun > /dev/null || exit 77
here=$(cd "$(dirname "$0")" && pwd)
source=${TRIREME_SOURCE_DIR:-$(cd "$here/../.." && pwd)}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mpicxx -std=c++20 -O1 -pthread -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX -I"$source/include" "$here/mpi_failure.cpp" \
  -o "$folder/mpi_failure" || exit 1

failed=0
run() { # how, sentence that ranks 0 and 2 must print
  timeout -k 5 30 mpirun -n 3 "$folder/mpi_failure" "$1" > "$folder/out" 2> "$folder/err"
  local status=$?
  local told
  told=$(grep -E '^after [0-9.]+ s: rank [02]: ' "$folder/out" | grep -c -E "$2")
  if [ $status -eq 0 ] || [ $status -eq 124 ] || [ $status -eq 137 ]; then
    echo "$1: mpirun ended with $status"; failed=1
  fi
  if [ "$told" -ne 2 ]; then echo "$1: $told of 2 ranks said: $2"; cat "$folder/out"; failed=1; fi
  if grep -E '^after' "$folder/out" | awk '{ if ($2 > 2.0) late = 1 } END { exit !late }'; then
    echo "$1: later than the deadline and one second"; cat "$folder/out"; failed=1
  fi
}
run late 'waited 1s for rank 1'
run stopped 'waited 1s for rank 1'
run throws 'rank 1 ended with an error: loss is nan'
run differs 'rank 0 called all_reduce.*rank 1 called all_gather|rank 1 called all_gather.*rank 2 called all_reduce'
sleep 1
if pgrep -f "$folder/mpi_failure" > /dev/null; then echo "processes were left behind"; failed=1; fi
exit $failed
