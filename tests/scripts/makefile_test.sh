#!/usr/bin/env bash
# test-timeout: 1500
# test-takes: 60
# The Makefile of docs/programs.md builds the program beside it, which runs on two ranks of MPI. The Makefile of
# docs/quick_builds.md builds the README's program with src/trireme.cpp as one extra source.
set -euo pipefail
root=$TRIREME_SOURCE_DIR
for tool in mpicxx mpirun make pkg-config; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
makefile() {  # makefile PAGE: its Makefile
  awk '/^<!-- file: Makefile -->/ { named = 1; next } named && /^```make/ { inside = 1; next }
       inside && /^```/ { exit } inside' "$root/docs/$1"
}
rm -rf solver quick
"$root/scripts/extract-examples" solver "$root/docs/programs.md" >/dev/null
makefile programs.md >solver/Makefile
make -C solver TRIREME="$root" CXXFLAGS=-O0
mpirun -n 2 solver/inside_a_solver

# Each source is in it once, in all sorts of pieces, whatever has been added to src/.
folders=$(pkg-config --cflags eigen3)
sources_in() {  # sources_in FLAGS...: the files of src/ that src/trireme.cpp includes
  # shellcheck disable=SC2086
  g++ -std=c++20 -E -fdirectives-only -DTRIREME_COMPILED -I"$root/include" $folders "$@" "$root/src/trireme.cpp" |
    sed -nE "s|^# 1 \"$root/src/([a-z0-9_]+\.cpp)\" 1$|\1|p"
}
wanted=$(cd "$root/src" && printf '%s\n' *.cpp | grep -v '^trireme\.cpp$' | sort)
only=$(grep -v bf16 <<<"$wanted")
for mode in '' -DTRIREME_ONLY_FP32; do
  expected=$wanted
  [[ -z $mode ]] || expected=$only
  # shellcheck disable=SC2086
  whole=$(sources_in $mode | sort)
  # shellcheck disable=SC2086
  quarters=$(for n in 1 2 3 4; do sources_in $mode -DTRIREME_QUARTER=$n; done | sort)
  [[ $whole == "$expected" ]] || { printf 'src/trireme.cpp %s has\n%s\n' "$mode" "$whole"; exit 1; }
  [[ $quarters == "$expected" ]] || { printf 'the quarters of it %s have\n%s\n' "$mode" "$quarters"; exit 1; }
done

mkdir quick
"$root/scripts/extract-examples" quick "$root/README.md" >/dev/null
mv quick/readme.cpp quick/program.cpp
makefile quick_builds.md >quick/Makefile
less_garbage='--param ggc-min-expand=200 --param ggc-min-heapsize=524288'
CPPFLAGS=-DTRIREME_ONLY_FP32 make -C quick TRIREME="$root" CXXFLAGS="-O0 $less_garbage" 2>&1 | tee quick/log
[[ -e quick/trireme0.o ]]
(cd quick && ./program) | tee quick/told
grep -q 'loss' quick/told
# A file of another compiler does not link, and the linker says why.
if command -v clang++ >/dev/null; then
  echo '#include "trireme/core/compiled.hpp"
    int main() {}' >quick/other.cpp
  for compiler in g++ clang++; do
    "$compiler" -std=c++20 -DTRIREME_COMPILED -I"$root/include" -c quick/other.cpp -o quick/other_$compiler.o
    if g++ quick/other_$compiler.o quick/trireme0.o -lfmt -pthread -o quick/other >quick/linker 2>&1; then
      [[ $compiler == g++ ]]
    else
      [[ $compiler == clang++ ]]
      grep -q 'trireme::compile_the_library_by_clang_as_this_program' quick/linker
    fi || { cat quick/linker; exit 1; }
  done
fi
# In four pieces the same commands would run, each for a quarter.
make -n -B -C quick TRIREME="$root" QUARTERS="1 2 3 4" >quick/commands
[[ $(grep -c -- '-DTRIREME_QUARTER=[1-4] -c' quick/commands) == 4 ]] || { cat quick/commands; exit 1; }
