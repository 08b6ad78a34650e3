#!/usr/bin/env bash
# test-timeout: 600
# test-takes: 60
# A rank that is late, stopped, dead, throws, or calls something else must become an error on all others, in time, that
# names it and the operation, and is reported by one of them: in shared memory and by messages, with each MPI of this
# machine.
set -u
# shellcheck source=tests/comm/mpi_programs.bash
source "$(dirname "$0")/mpi_programs.bash"
mpi_begin mpi_failure.cpp


# run MPI shared|messages|any HOW RANKS SENTENCE [OPTION]: the ranks (digits) must print a match of the sentence.
run() {
  local at="$folder/$1.$2.$3" status told reported ranks=3
  case $3 in *-34) ranks=8 ;; esac
  mpi_own_folder
  # shellcheck disable=SC2046
  mpi_timeout 30 "$(mpi_run "$1")" $(mpi_apart "$1" "$at.rank") ${6+"$6"} -n "$ranks" "$folder/$1/program" "$2" "$3" \
    > "$at.out" 2> "$at.err"
  status=$?
  cat "$at".rank.* >> "$at.out" 2> /dev/null
  # Mpirun of MPICH 4.2 forgets now and then what ranks ended with that leave without MPI_Finalize (seen 12 times of 96
  # for programs of MPI_Init and _exit(1) too). They say themselves why they end with 1.
  if [ $status -eq 0 ] && ! mpi_is_open "$1" && grep -qE '^(reports|silent): ' "$at.out"; then status=1; fi
  told=$(grep -E "^after [0-9.]+ s: rank [$4]: " "$at.out" | grep -c -E "$5")
  reported=$(grep -c '^reports: ' "$at.out")
  {
    if [ $status -eq 124 ] || { [ $status -eq 0 ] && [ "$3" != dies ]; }; then
      echo "$1 $2 $3: mpirun ended with $status"
    fi
    if [ "$told" -ne ${#4} ]; then
      echo "$1 $2 $3: $told of ${#4} ranks said: $5"
      cat "$at.out" "$at.err"
    fi
    if [ "$reported" -ne 1 ]; then
      echo "$1 $2 $3: $reported ranks reported"
      cat "$at.out" "$at.err"
    fi
    if grep -E '^after' "$at.out" | awk '{ if ($2 > 5.0) late = 1 } END { exit !late }'; then
      echo "$1 $2 $3: later than the deadline and four seconds"
      cat "$at.out"
    fi
  } > "$at.wrong"
}
# Three at a time: they mostly wait.
begun=0
try() {
  run "$@" &
  begun=$((begun + 1))
  [ $((begun % 3)) -ne 0 ] || wait
}
other_call='rank 0 called all_reduce.*rank 1 called all_gather|rank 1 called all_gather.*rank 2 called all_reduce'
for mpi in $mpis; do
  for how in shared messages; do
    try "$mpi" $how late 02 'all_reduce.* waited 1s for rank 1'
    try "$mpi" $how stopped 02 'all_reduce.* waited 1s for rank 1'
    try "$mpi" $how stopped-0 12 'all_reduce.* waited 1s for rank 0'
    try "$mpi" $how throws 02 'rank 1 ended with an error: loss is nan'
    try "$mpi" $how exits 02 'all_reduce.* cannot finish, because rank 1 has left without calling it'
    try "$mpi" $how pending 02 'rank 1 ended with an error: an exception left a call pending'
    try "$mpi" $how differs 012 "$other_call"
    try "$mpi" $how split 02 'split.* waited 1s for rank 1'
    try "$mpi" $how transfer 012 'rank 0 sends 30000 .*of F32.* rank 1.* 7 .*of F32'
  done
  # Where the sum would be MPI's own.
  try "$mpi" any late 02 'all_reduce.* waited 1s for rank 1'
  try "$mpi" any stopped-0 12 'all_reduce.* waited 1s for rank 0'
  try "$mpi" any throws 02 'rank 1 ended with an error: loss is nan'
  try "$mpi" any differs 012 "$other_call"
  # Six wait for two, by way of each other.
  try "$mpi" messages late-34 012567 'all_reduce.* waited 1s for ranks 3, 4'
  # A dead rank, where mpirun can be told not to end the others itself.
  if mpi_is_open "$mpi"; then
    try "$mpi" shared dies 02 'rank 1 has died' --enable-recovery
    try "$mpi" messages dies 02 'all_reduce.*rank 1' --enable-recovery
  fi
done
wait
sleep 1
if pgrep -f "$folder/.*/program" > /dev/null; then
  echo "processes were left behind:"
  pgrep -af "$folder/.*/program"
  exit 1
fi
cat "$folder"/*.wrong
! grep -q . "$folder"/*.wrong
