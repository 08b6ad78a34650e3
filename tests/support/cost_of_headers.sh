#!/usr/bin/env bash
# cost_of_headers.sh "KB BODIES MB" COMPILER FLAGS... SOURCE
#
# What g++ makes of a source may be at most so many kilobytes of code in so many distinct function bodies, for which it
# allocates at most so many megabytes. These numbers are the same on a busy machine; seconds are not. They belong to one
# compiler: another version is skipped (exit code 77).
set -euo pipefail
read -r most_code most_bodies most_memory <<<"$1"
shift
version=$("$1" -dumpfullversion 2>/dev/null || true)
if [[ $version != 12.2.* ]] || ! "$1" --version | grep -q 'Free Software' || [[ $(uname -m) != x86_64 ]]; then
  echo "skipped: the bounds are those of g++ 12.2 on x86-64"
  exit 77
fi
report=$("$@" -ftime-report -c -o cost.o 2>&1) || { echo "$report"; exit 1; }
code=$(size cost.o | awk 'NR == 2 { print int(($1 + 999) / 1000) }')
# A constructor has two names, and one body.
bodies=$(readelf -sW cost.o | awk '$4 == "FUNC" && $7 ~ /^[0-9]+$/ { print $7, $2 }' | sort -u | wc -l)
memory=$(awk '/^ *TOTAL/ { print int($NF * ($NF ~ /k$/ ? 0.001 : $NF ~ /G$/ ? 1000 : 1)) }' <<<"$report")
echo "code $code kB, bodies $bodies, memory $memory MB; at most $most_code kB, $most_bodies, $most_memory MB"
if ((code > most_code || bodies > most_bodies || memory > most_memory)); then
  echo "the headers make more than they did: mend that, or raise the bound in tests/headers.cmake and say why"
  exit 1
fi
