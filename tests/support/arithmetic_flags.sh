#!/usr/bin/env bash
# arithmetic_flags.sh COMPILER SOURCE FLAGS...: parts of -ffast-math of which the compiler tells the preprocessor
# nothing are found when the program runs, at every level at which they change code; without them all is well.
set -uo pipefail
compiler=$1 source=$2
shift 2
failed=0
said() {
  "$compiler" -std=c++20 "${common[@]}" "$@" "$source" -o arithmetic_flags || exit 1
  ./arithmetic_flags
}
common=("$@")
expect() {
  local sentence=$1 answer
  shift
  answer=$(said "$@") || { echo "does not compile or run: $*"; exit 1; }
  [[ $answer == *"$sentence"* ]] || { echo "with $* it says: $answer"; failed=1; }
}
for level in -O0 -O3; do expect exact "$level"; done
refused="trireme::expect_exact_arithmetic: this program was compiled so that"
expect "$refused NaN equals itself" -O1 -fno-honor-nans
expect "$refused infinity is finite" -O1 -fno-honor-infinities
expect "$refused zero has no sign" -O1 -fno-signed-zeros
expect "$refused a quotient is a product" -O1 -freciprocal-math
expect "$refused sums have another order" -O2 -fassociative-math -fno-signed-zeros -fno-trapping-math
expect "$refused sums have another order" -O2 -funsafe-math-optimizations
exit "$failed"
