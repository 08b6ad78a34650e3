#!/usr/bin/env bash
# test-timeout: 240
# A solver that has borrowed worlds survives a failure of one of them, with each MPI of this machine, in shared memory
# and by messages: every rank reads the right sentence, other worlds go on, it can borrow again, MPI_Finalize returns.
set -u
# shellcheck source=tests/comm/mpi_programs.bash
source "$(dirname "$0")/mpi_programs.bash"
mpi_begin mpi_borrowed_failure.cpp

run() { # MPI shared|messages CASE RANKS [LEVEL]
  local at="$folder/$1.$2.$3.$4.${5-}" status options=
  mpi_is_open "$1" && options='--oversubscribe'
  # shellcheck disable=SC2046,SC2086
  timeout -k 5 60 "$(mpi_run "$1")" $options $(mpi_apart "$1" "$at.rank") -n "$4" "$folder/$1/program" "$2" "$3" 1 \
    ${5-} > "$at.out" 2> "$at.err"
  status=$?
  cat "$at".rank.* >> "$at.out" 2> /dev/null
  if [ $status -ne 0 ] || grep -q '^WRONG' "$at.out" || [ "$(grep -c '^right finalised' "$at.out")" -ne "$4" ]; then
    { echo "$1 $2 $3 ${5-} with $4 ranks ended with $status:"; cat "$at.out" "$at.err"; } > "$at.wrong"
  fi
}
# Three at a time: they mostly wait.
begun=0
try() {
  run "$@" &
  begun=$((begun + 1))
  [ $((begun % 3)) -ne 0 ] || wait
}
for mpi in $mpis; do
  for how in differs differs-large throws pending-large abandons late-large absent-large transfer-large; do
    try "$mpi" messages $how 3
  done
  for how in differs throws; do
    try "$mpi" messages $how 7
    try "$mpi" messages $how 2
    try "$mpi" shared $how 3
  done
  for how in pending abandons late-large; do try "$mpi" shared $how 3; done
  # Whoever makes the progress: the rank itself (as above), or a thread of the library.
  try "$mpi" messages throws 3 single
  try "$mpi" messages late-large 3 single
  try "$mpi" messages differs-large 3 funneled
  for how in pending-large late-large differs-large; do try "$mpi" messages $how 3 multiple; done
done
wait
cat "$folder"/*.wrong 2> /dev/null
! ls "$folder"/*.wrong > /dev/null 2>&1
