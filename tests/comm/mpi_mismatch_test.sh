#!/usr/bin/env bash
# test-timeout: 600
# Ranks under mpirun whose calls differ, in eight ways: every rank must be told which ranks and which calls, with
# checked worlds and without, in shared memory and by messages.
set -u
# shellcheck source=tests/comm/mpi_programs.bash
source "$(dirname "$0")/mpi_programs.bash"
mpi_begin mpi_mismatch.cpp
read -r mpi _ <<< "$mpis"

# run RANKS HOW WORLD KIND: as many ranks must be told what is right.
run() {
  local at="$folder/$1.$2.$3.${4// /_}"
  mpi_own_folder
  # shellcheck disable=SC2046
  timeout -k 5 60 "$(mpi_run "$mpi")" $(mpi_apart "$mpi" "$at.rank") -n "$1" \
    "$folder/$mpi/program" "$2" "$3" "$4" "$at.printed" > "$at.out" 2> "$at.err"
  cat "$at".rank.* >> "$at.out" 2> /dev/null
  if [ "$(grep -c '^right after' "$at.out")" -ne "$1" ]; then
    { echo "$1 ranks, $2, $3, $4:"; cat "$at.out" "$at.err"; } > "$at.wrong"
  fi
}
# Three at a time: they mostly wait.
begun=0
while read -r ranks how world; do
  for kind in operation type count root reduction order group 'missing call'; do
    run "$ranks" "$how" "$world" "$kind" &
    begun=$((begun + 1))
    [ $((begun % 3)) -ne 0 ] || wait
  done
done << 'END'
2 messages checked
4 shared checked
3 shared plain
2 messages plain
END
wait
cat "$folder"/*.wrong 2> /dev/null
! ls "$folder"/*.wrong > /dev/null 2>&1
