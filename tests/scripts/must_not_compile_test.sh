#!/usr/bin/env bash
# The driver of the must-not-compile tests accepts the one designed error, and no other reason for a refusal.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
driver=$root/tests/fail/must_not_compile.sh
designed='template <class T> struct slot { static_assert(sizeof(T) == 0, "trireme::slot: int is not a policy"); };'

# together COMPILER FOLDER: as tests/must_not_compile.cmake has it done.
together() {
  bash "$driver" --together "$work/list" "$1" "$2" || return
  local rule status=0
  for rule in "$2"/*_fail.cpp; do
    bash "$driver" --unless "$work/list" "$1" "${rule%_fail.cpp}" || status=1
  done
  return $status
}

# trial NAME EXPECTED-EXIT FAIL-SOURCE CLEAN-SOURCE
trial() {
  printf '// expected-error: trireme::slot: int is not a policy\n%s\n' "$3" >"$work/rule_fail.cpp"
  printf '%s\n' "$4" >"$work/rule_clean.cpp"
  for compiler in g++ clang++ nvcc; do
    command -v "$compiler" >/dev/null || continue
    bash "$driver" "$compiler" "$work/rule" >"$work/output" 2>&1
    local alone=$? as_unit
    together "$compiler" "$work" >>"$work/output" 2>&1
    as_unit=$?
    if [[ $as_unit != "$alone" ]]; then
      printf '%s with %s: exit code %s together, %s alone\n' "$1" "$compiler" "$as_unit" "$alone"
      cat "$work/output"
      failures=$((failures + 1))
    fi
    ((alone == 0)) &&
      bash "$driver" "$compiler" "$work" >>"$work/output" 2>&1
    if [[ $? != "$2" ]]; then
      printf '%s with %s: expected exit code %s\n' "$1" "$compiler" "$2"
      cat "$work/output"
      failures=$((failures + 1))
    fi
  done
}

trial 'the designed error'         0 "$designed slot<int> x;" 'int x;'
trial 'it compiles'                1 'int x;' 'int x;'
trial 'another error'              1 'int x = nothing;' 'int x;'
trial 'the sentence not the error' 1 'int x = nothing; // trireme::slot: int is not a policy' 'int x;'
trial 'two errors'                 1 "$designed slot<int> x; int y = nothing;" 'int x;'
trial 'a clean twin that is not'   1 "$designed slot<int> x;" 'int x = nothing;'
rm -f "$work/rule_clean.cpp"
if bash "$driver" g++ "$work/rule" >/dev/null 2>&1; then
  echo 'a clean twin that is missing: accepted'
  failures=$((failures + 1))
fi
trial 'clean but for its templates' 1 "$designed slot<int> x;" \
  'template <class T> struct late { void f() { g(); } void g() { static_assert(sizeof(T) == 0, "late"); } };
int main() { late<int> x; x.f(); }'
trial 'an include that is missing' 1 "#include \"missing.hpp\"
$designed slot<int> x;" 'int x;'

# Together: rules with sentences of their own, two rules that share one, and one of them that is not refused.
mkdir "$work/several"
printf '#pragma once\n%s\n' "$designed" >"$work/several/slots.hpp"
rule() { # rule NAME SENTENCE SOURCE
  echo 'int x;' >"$work/several/$1_clean.cpp"
  printf '#include "slots.hpp"\n// expected-error: %s\n%s\n' "$2" "$3" >"$work/several/$1_fail.cpp"
}
several() { # several WHAT EXPECTED-EXIT EXPECTED-LENGTH-OF-LIST
  for compiler in g++ clang++; do
    command -v $compiler >/dev/null || continue
    together $compiler "$work/several" >"$work/output" 2>&1
    local status=$?
    if [[ $status != "$2" || $(wc -l <"$work/list") != "$3" ]]; then
      printf '%s with %s: exit code %s, expected %s; refused together, %s expected:\n' "$1" $compiler $status "$2" "$3"
      cat "$work/list" "$work/output"
      failures=$((failures + 1))
    fi
  done
}
for n in 1 2 3; do rule "own$n" "own $n" "struct a; static_assert(sizeof(int) == $n, \"own $n\");"; done
for n in 1 2; do rule "shared$n" 'trireme::slot: int is not a policy' 'slot<int> x;'; done
several 'several rules' 0 3
rule own2 'own 2' 'int x;'
several 'one of them compiles' 1 2
rule own2 'own 2' 'static_assert(sizeof(int) == 2, "own 2"); int y = nothing;'
several 'one of them has two errors' 1 0
rule own2 'own 2' 'static_assert(sizeof(int) == 2, "own 2");'
rule shared2 'trireme::slot: int is not a policy' 'int x;'
several 'one that shares a sentence compiles' 1 3
exit $((failures > 0))
