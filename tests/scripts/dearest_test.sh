#!/usr/bin/env bash
# scripts/test names the builds and the tests that took the longest, and says how long all of them took.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
source "$root/scripts/dearest.bash"
# Two builds of b.o, of which the later counts; one command with two outputs; a command that ran without making a file.
{
  echo '# ninja log v5'
  printf '0\t5000\t7\tb.o\t1\n0\t1500\t7\ta.o\t2\n9000\t11000\t8\tb.o\t1\n'
  printf '2000\t2300\t7\tc.h\t3\n2000\t2300\t7\tc.cpp\t3\n0\t90000\t0\tglob\t4\n'
} >ninja_log
{
  echo '        Start 1: core.plural'
  echo ' 1/12 Test  #1: core.plural ......................   Passed    0.50 sec'
  echo '12/12 Test #10: train_gpt.restarts_py ............***Failed  164.12 sec'
  for n in 2 3 4 5 6 7 8 9 10 11; do echo " $n/12 Test #$((n + 9)): room.t$n .....***Skipped   $n.00 sec"; done
} >log
report_dearest log ninja_log >told
cat >expected <<'END'
seconds, one after another: builds 4 s in 3, tests 230 s in 12
the dearest builds:
  2.0 s  b.o
  1.5 s  a.o
  0.3 s  c.X
the dearest tests:
  164.12 s  train_gpt.restarts_py
  11.00 s  room.t11
  10.00 s  room.t10
  9.00 s  room.t9
  8.00 s  room.t8
  7.00 s  room.t7
  6.00 s  room.t6
  5.00 s  room.t5
  4.00 s  room.t4
  3.00 s  room.t3
END
sed -E -i 's/c\.(h|cpp)$/c.X/' told
diff expected told
# Nothing was built: what there is is told.
: >none
report_dearest log none >told
grep -q '^seconds, one after another: builds 0 s in 0, tests 230 s in 12$' told || { cat told; exit 1; }
