#!/usr/bin/env bash
# The driver of the must-not-compile tests accepts the one designed error, and no other reason for a refusal.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
designed='template <class T> struct slot { static_assert(sizeof(T) == 0, "trireme::slot: int is not a policy"); };'

# trial NAME EXPECTED-EXIT FAIL-SOURCE CLEAN-SOURCE
trial() {
  printf '// expected-error: trireme::slot: int is not a policy\n%s\n' "$3" >"$work/rule_fail.cpp"
  printf '%s\n' "$4" >"$work/rule_clean.cpp"
  for compiler in g++ clang++ nvcc; do
    command -v "$compiler" >/dev/null || continue
    bash "$root/tests/fail/must_not_compile.sh" "$compiler" "$work/rule" >"$work/output" 2>&1 &&
      bash "$root/tests/fail/must_not_compile.sh" "$compiler" "$work" >>"$work/output" 2>&1
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
if bash "$root/tests/fail/must_not_compile.sh" g++ "$work/rule" >/dev/null 2>&1; then
  echo 'a clean twin that is missing: accepted'
  failures=$((failures + 1))
fi
trial 'clean but for its templates' 1 "$designed slot<int> x;" \
  'template <class T> struct late { void f() { g(); } void g() { static_assert(sizeof(T) == 0, "late"); } };
int main() { late<int> x; x.f(); }'
trial 'an include that is missing' 1 "#include \"missing.hpp\"
$designed slot<int> x;" 'int x;'
exit $((failures > 0))
