#!/usr/bin/env bash
# test-timeout: 300
# The Makefile of docs/programs.md builds the program beside it, which runs on two ranks of MPI.
set -euo pipefail
root=$TRIREME_SOURCE_DIR
for tool in mpicxx mpirun make pkg-config; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
rm -rf solver
"$root/scripts/extract-examples" solver "$root/docs/programs.md" >/dev/null
awk '/^<!-- file: Makefile -->/ { named = 1; next } named && /^```make/ { inside = 1; next }
     inside && /^```/ { exit } inside' "$root/docs/programs.md" >solver/Makefile
make -C solver TRIREME="$root" CXXFLAGS=-O0
mpirun -n 2 solver/inside_a_solver
