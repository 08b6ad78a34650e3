#!/usr/bin/env bash
# scripts/test lists what was skipped with the reason, of whole tests and of parts, and fails where something is missing
# that it installs itself.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
source "$root/scripts/skipped.bash"
mkdir -p project
cd project
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.20)
project(skipping NONE)
enable_testing()
function(says name words code)
  add_test(NAME ${name} COMMAND bash -c "echo '${words}'; exit ${code}")
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()
says(a.whole "skipped: no GPU here" 77)
says(a.part "skipped: in part: transformers was not asked" 0)
says(a.quiet "ran" 0)
if(OURS)
  says(a.ours "skipped: TRIREME_PYTHON is not set" 77)
endif()
END

run() { cmake -S . -B "$1" "-DOURS=$2" >/dev/null && { ctest --test-dir "$1" >/dev/null || true; }; }
log=Testing/Temporary/LastTest.log
fail() { echo "failed: $1"; exit 1; }

run fine OFF
found=$(report_skipped fine/$log 1) || fail "reasons that nobody can help are no failure"
[[ $found == "skipped, because:
  a.whole: no GPU here
  a.part: in part: transformers was not asked" ]] || fail "the list is: $found"
run ours ON
found=$(report_skipped ours/$log 1) && fail "what scripts/test installs was missing, and that passed"
[[ $found == *"  a.ours: TRIREME_PYTHON is not set"*"so this is a failure" ]] || fail "the list is: $found"
found=$(report_skipped ours/$log 0) || fail "with --no-install nothing was promised"
: >empty
[[ -z $(report_skipped empty 1) ]] || fail "no test was skipped, and still there is a list"
grep -q '^report_skipped ' "$root/scripts/test" || fail "scripts/test does not list what was skipped"
