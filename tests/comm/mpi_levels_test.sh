#!/usr/bin/env bash
# test-timeout: 900
# test-waits: 240
# A program that initialises MPI itself, at each level of threads, with each MPI of this machine: all collectives by
# messages, a loop that calls MPI between ready and step, a training of the same bits, and calls after MPI_Finalize.
set -u
# shellcheck source=tests/comm/mpi_programs.bash
source "$(dirname "$0")/mpi_programs.bash"
mpi_begin mpi_levels.cpp

run() { # MPI LEVEL RANKS
  local at="$folder/$1.$2.$3" status options=
  mpi_is_open "$1" && options='--oversubscribe'
  mpi_own_folder
  # shellcheck disable=SC2046,SC2086
  timeout -k 5 200 "$(mpi_run "$1")" $options $(mpi_apart "$1" "$at.rank") -n "$3" "$folder/$1/program" "$2" \
    > "$at.out" 2> "$at.err"
  status=$?
  cat "$at".rank.* >> "$at.out" 2> /dev/null
  [ $status -eq 0 ] && ! grep -q '^WRONG' "$at.out" && [ "$(grep -c '^right ended' "$at.out")" -eq "$3" ] && return
  { echo "$1 $2 with $3 ranks ended with $status:"; cat "$at.out" "$at.err"; } > "$at.wrong"
}
# Three at a time: ranks that wait for each other's messages give their cores away.
begun=0
try() {
  run "$@" &
  begun=$((begun + 1))
  [ $begun -lt 3 ] || wait -n
}
for mpi in $mpis; do
  for level in single funneled serialized multiple; do try "$mpi" $level 3; done
  try "$mpi" single 1
  try "$mpi" funneled 2
done
wait
cat "$folder"/*.wrong 2> /dev/null
! ls "$folder"/*.wrong > /dev/null 2>&1
