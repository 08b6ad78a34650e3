#!/usr/bin/env bash
# alone.sh HEADER STAMP INCLUDE READ BASES COMPILER FLAGS...: whether HEADER (a path below the folder INCLUDE) compiles
# alone, with clang++; its dependencies go to STAMP.d. BASES are names of headers in one word, separated by commas,
# which the compiler has read to READ/NAME.pch (with dots instead of slashes). The first of them that HEADER includes,
# directly or not, is read from there: nothing is visible then that HEADER has not asked for, and that what it asks for
# compiles alone is shown by the runs for those headers. A base that includes HEADER in turn would hide what HEADER
# lacks, so it is not taken.
set -euo pipefail
header=$1 stamp=$2 include=$3 read=$4 bases=$5
shift 5
base=$(awk -v header="$header" -v include="$include" -v bases="$bases" '
  function reach(from, reached,    list, n, i, line, file, status) {
    list[n = 1] = from
    for (i = 1; i <= n; ++i) {
      file = include "/" list[i]
      while ((status = (getline line < file)) > 0)
        if (line ~ /^ *#include "trireme\//) {
          sub(/^[^"]*"/, "", line)
          sub(/".*/, "", line)
          if (!(line in reached)) {
            reached[line] = 1
            list[++n] = line
          }
        }
      close(file)
    }
  }
  BEGIN {
    reach(header, of_header)
    count = split(bases, all, ",")
    for (b = 1; b <= count; ++b)
      if (all[b] in of_header) {
        split("", of_base)
        reach(all[b], of_base)
        if (!(header in of_base)) {
          print all[b]
          exit
        }
      }
  }')
already=()
if [[ -n $base ]]; then already=(-include-pch "$read/${base//\//.}.pch"); fi
"$@" "${already[@]}" -MD -MF "$stamp.d" -MT "$stamp" -include "$include/$header" -x c++ \
  "$(dirname "$0")/no_code.cpp"
: >"$stamp"
