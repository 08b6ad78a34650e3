#!/usr/bin/env bash
# A tensor of a GPU may have more than 2^31 elements. No kernel computes an index as a product of two ints, unless it
# stands in products_of_ints.txt: those are products of constants and of numbers of threads, lanes and steps of a loop.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cuda=${CUDA_HOME:-/usr/local/cuda}/include
allowed=$root/tests/simt/products_of_ints.txt
skip() { echo "skipped: $1"; exit 77; }
command -v clang-tidy >/dev/null || skip "no clang-tidy"
[[ -e $cuda/cuda_runtime.h ]] || skip "no cuda_runtime.h in $cuda"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check() { # the kernels that the file includes
  clang-tidy --quiet --checks='-*,bugprone-implicit-widening-of-multiplication-result' --warnings-as-errors='' \
    --header-filter='ops/cuda/|comm/cuda|planted' "$1" -- -x c++ -std=c++20 -I"$root/include" -isystem "$cuda" \
    -isystem /usr/include/eigen3 >"$work/said" 2>&1 || true
  if grep -E 'error:' "$work/said"; then exit 1; fi
  sed -nE "s|^([^:]+):([0-9]+):[0-9]+: warning: .*multiplication.*|\1 \2|p" "$work/said" | LC_ALL=C sort -u |
    while read -r file line; do
      echo "${file##*include/trireme/}: $(sed -nE "${line}{s/^ +//;p}" "$file")"
    done
}
printf '#include "%s/tests/support/simt/threads.hpp"\n#include "trireme/cuda.cu"\n' "$root" >"$work/all.cpp"
check "$work/all.cpp" >"$work/found"
unlisted=$(grep -vxFf "$allowed" "$work/found" || true)
stale=$(grep -vxFf "$work/found" "$allowed" || true)
echo "$(wc -l <"$work/found") products of ints"
if [[ -n $unlisted ]]; then
  printf 'An index is a product of two ints, which may be too large for an int; make a factor std::int64_t:\n%s\n' \
    "$unlisted"
  exit 1
fi
if [[ -n $stale ]]; then
  printf 'These lines of products_of_ints.txt are in no kernel any more:\n%s\n' "$stale"
  exit 1
fi

# One that is planted is found.
printf '#include "%s/tests/support/simt/threads.hpp"\n#include "trireme/ops/cuda/device.hpp"\n%s\n' "$root" \
  '__global__ void planted(float* y, int row, int columns) { y[row * columns] = 1; }' >"$work/planted.cpp"
check "$work/planted.cpp" >"$work/found"
grep -q 'y\[row \* columns\]' "$work/found" || { echo "a planted product of ints is not found"; exit 1; }
