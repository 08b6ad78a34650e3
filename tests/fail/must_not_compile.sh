#!/usr/bin/env bash
# must_not_compile.sh COMPILER RULE [FLAGS...]
#
# RULE_fail.cpp must be refused with exactly one error, on whose line the sentence of its line
# `// expected-error: sentence` stands; RULE_clean.cpp must compile, so that the refusal is for that reason alone.
# COMPILER is a g++, a clang++ or an nvcc (which sees the source as CUDA, without Eigen and fmt).
set -uo pipefail
compiler=$1 rule=$2
shift 2

# Only what is checked is asked for: half of the time would go into code that nobody runs. g++ leaves out with
# -fsyntax-only what it instantiates at the end of the unit, but does that, and then stops, where there was an error:
# the clean twin gets one, of which we know.
last_line=
case $("$compiler" --version 2>/dev/null) in
  *[Nn]vidia*|*NVIDIA*)
    own=()
    for flag in "$@"; do [[ $flag == -I* ]] && own+=("$flag"); done
    command=("$compiler" -std=c++20 "${own[@]}" -Xcudafe --no_wrap_diagnostics -x cu -c -o /dev/null) ;;
  *clang*)
    command=("$compiler" -std=c++20 "$@" -DFMT_HEADER_ONLY=1 -fno-caret-diagnostics -ferror-limit=0 -fsyntax-only) ;;
  *)
    command=("$compiler" -std=c++20 "$@" -DFMT_HEADER_ONLY=1 -fno-diagnostics-show-caret -S -o /dev/null)
    last_line='the last line of the clean twin' ;;
esac

fail() {
  printf '%s\n' "$1" "command: ${command[*]} $2"
  [[ -n ${output:-} ]] && printf 'output:\n%s\n' "$output"
  exit 1
}

# "x.cpp:3:1: error: ...", "fatal error: ...", "x.cu(3): error: ...", "error #20012-D: ..."; not "1 error generated."
errors_of() { grep -E '(^|[ :)])error( #[0-9]+(-D)?)?: ' <<<"$1"; }

sentence=$(sed -n 's|^// expected-error: *||p' "${rule}_fail.cpp") || fail "cannot read" "${rule}_fail.cpp"
[[ -n $sentence && $sentence != *$'\n'* ]] ||
  fail "there must be one line '// expected-error: sentence'" "${rule}_fail.cpp"

if [[ -z $last_line ]]; then
  output=$("${command[@]}" "${rule}_clean.cpp" 2>&1) || fail "the clean twin does not compile" "${rule}_clean.cpp"
else
  output=$(printf '#include "%s"\n#error %s\n' "$(realpath "${rule}_clean.cpp")" "$last_line" |
    "${command[@]}" -x c++ - 2>&1)
  errors=$(errors_of "$output")
  [[ $errors == *"error: #error $last_line" && $errors != *$'\n'* ]] ||
    fail "the clean twin does not compile" "${rule}_clean.cpp"
fi
output=$("${command[@]}" "${rule}_fail.cpp" 2>&1) && fail "it compiles, but must be refused" "${rule}_fail.cpp"

errors=$(errors_of "$output")
count=$(grep -c . <<<"$errors")
[[ $count == 1 ]] || fail "$count errors, but one is expected" "${rule}_fail.cpp"
[[ $errors == *"$sentence"* ]] || fail "the error does not say: $sentence" "${rule}_fail.cpp"
