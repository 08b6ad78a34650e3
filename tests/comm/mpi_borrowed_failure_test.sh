#!/usr/bin/env bash
# test-timeout: 600
# test-waits: 50
# A solver that has borrowed worlds survives failures of some of them, with each MPI of this machine, in shared memory
# and by messages: every rank reads the right sentence, other worlds go on, it can borrow again, MPI_Finalize returns.
#   RUNS=500 tests/comm/mpi_borrowed_failure_test.sh      plays each so many times
#   RANKS=7 CASES=throws,late ENGINES=messages JITTER=3000 tests/comm/mpi_borrowed_failure_test.sh
#                                                         only these, with random waits of up to 3000 us
#   SANITIZE=1 tests/comm/mpi_borrowed_failure_test.sh    with AddressSanitizer and LeakSanitizer, and a planted leak
set -u
# shellcheck source=tests/comm/mpi_programs.bash
source "$(dirname "$0")/mpi_programs.bash"
if [ -n "${SANITIZE-}" ]; then
  mpi_flags='-fsanitize=address -g1 -fno-omit-frame-pointer'
  # Otherwise LeakSanitizer finds callers by frame pointers, which the MPIs do not have.
  export ASAN_OPTIONS=detect_leaks=1:exitcode=23:fast_unwind_on_malloc=0
  supp=$(cd "$(dirname "$0")/../support" && pwd)/mpi_leaks.supp
  export LSAN_OPTIONS=suppressions=$supp:print_suppressions=0
fi
mpi_begin mpi_borrowed_failure.cpp
runs=${RUNS:-1}

run() { # MPI shared|messages RANKS serialized|single|funneled|multiple CASES
  local at="$folder/$1.$2.$3.$4.${5//,/.}" status options=
  mpi_is_open "$1" && options='--oversubscribe'
  mpi_own_folder
  # shellcheck disable=SC2046,SC2086
  timeout -k 5 $((60 + 40 * runs)) "$(mpi_run "$1")" $options $(mpi_apart "$1" "$at.rank") -n "$3" \
    "$folder/$1/program" "$2" "$5" "$runs" "$4" "${JITTER:-0}" "${DEADLINE:-3000}" > "$at.out" 2> "$at.err"
  status=$?
  cat "$at".rank.* >> "$at.out" 2> /dev/null
  if [ "$5" = plants-a-leak ]; then
    grep -q 'detected memory leaks' "$at".* && grep -q 'in .*plant_a_leak' "$at".* && return
    { echo "$1 $2: LeakSanitizer has not found the planted leak"; cat "$at.out" "$at.err"; } > "$at.wrong"
    return
  fi
  if [ $status -ne 0 ] || grep -q '^WRONG' "$at.out" || [ "$(grep -c '^right finalised' "$at.out")" -ne "$3" ]; then
    { echo "$1 $2 $5 with $3 ranks and MPI_THREAD_${4^^} ended with $status:"; cat "$at.out" "$at.err"; } > "$at.wrong"
  fi
}
# Two at a time: they mostly wait.
begun=0
try() {
  run "$@" &
  begun=$((begun + 1))
  [ $begun -lt 2 ] || wait -n
}
for mpi in $mpis; do
  if [ -n "${SANITIZE-}" ]; then try "$mpi" messages 3 multiple plants-a-leak; fi
  if [ -n "${CASES-}" ]; then
    for engine in ${ENGINES:-messages shared}; do try "$mpi" "$engine" "${RANKS:-3}" serialized "$CASES"; done
    continue
  fi
  # The longest first. Whoever makes the progress: the rank itself, or with MPI_THREAD_MULTIPLE a thread of the library.
  all=differs,differs-large,throws,alone,leaves,pending-large,abandons,late-large,absent-large,transfer-large
  try "$mpi" messages 3 serialized $all
  try "$mpi" shared 3 serialized differs,throws,alone,leaves,pending,abandons,late-large
  try "$mpi" messages 3 multiple pending-large,late-large,differs-large
  try "$mpi" messages 3 single throws,late-large
  try "$mpi" messages 3 funneled differs-large,leaves
  try "$mpi" messages 7 serialized differs,throws,alone,leaves
  try "$mpi" messages 7 serialized late,absent
  try "$mpi" shared 7 serialized differs,throws,leaves,late
  try "$mpi" messages 2 serialized differs,throws,alone,leaves
done
wait
cat "$folder"/*.wrong 2> /dev/null
! ls "$folder"/*.wrong > /dev/null 2>&1
