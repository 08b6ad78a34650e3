#!/usr/bin/env bash
# must_not_compile.sh COMPILER RULE [FLAGS...]
# must_not_compile.sh COMPILER FOLDER [FLAGS...]
#
# RULE_fail.cpp must be refused with exactly one error, on whose line the sentence of its line
# `// expected-error: sentence` stands. RULE_clean.cpp must compile, so that the refusal is for that reason alone: given
# a folder, all clean twins in it are compiled as one unit, each in a namespace of its own, because most of the time
# goes into reading the same headers. A pair that says `// test-compilers: g++ clang++` is left out for nvcc, which sees
# the source as CUDA, without Eigen and fmt.
set -uo pipefail
compiler=$1 what=$2
shift 2

# Only what is checked is asked for: half of the time would go into code that nobody runs. g++ leaves out with
# -fsyntax-only what it instantiates at the end of the unit, but does that, and then stops, where there was an error:
# the clean twins get one, of which we know.
last_line=
nvcc=0
case $("$compiler" --version 2>/dev/null) in
  *[Nn]vidia*|*NVIDIA*)
    own=()
    for flag in "$@"; do [[ $flag == -I* ]] && own+=("$flag"); done
    nvcc=1
    command=("$compiler" -std=c++20 "${own[@]}" -Xcudafe --no_wrap_diagnostics -x cu -c -o /dev/null) ;;
  *clang*)
    command=("$compiler" -std=c++20 "$@" -DFMT_HEADER_ONLY=1 -fno-caret-diagnostics -ferror-limit=0 -fsyntax-only
             -x c++) ;;
  *)
    command=("$compiler" -std=c++20 "$@" -DFMT_HEADER_ONLY=1 -fno-diagnostics-show-caret -S -o /dev/null -x c++)
    last_line='the last line of the clean twins' ;;
esac

fail() {
  printf '%s\n' "$1" "command: ${command[*]} $2"
  [[ -n ${output:-} ]] && printf 'output:\n%s\n' "$output"
  exit 1
}

# "x.cpp:3:1: error: ...", "fatal error: ...", "x.cu(3): error: ...", "error #20012-D: ..."; not "1 error generated."
errors_of() { grep -E '(^|[ :)])error( #[0-9]+(-D)?)?: ' <<<"$1"; }

if [[ -d $what ]]; then
  unit=$(mktemp --suffix .cpp)
  trap 'rm -f "$unit"' EXIT
  twins=()
  for twin in "$(realpath "$what")"/*_clean.cpp; do
    if ((nvcc)) && grep -q '^// test-compilers: *g++ clang++$' "${twin%_clean.cpp}_fail.cpp"; then continue; fi
    twins+=("$twin")
  done
  ((${#twins[@]})) || exit 0
  {
    # All headers first: those of a twin are not read again in its namespace.
    sed -n "s|^#include \"\([a-z_]*\.hpp\)\"|#include \"$(realpath "$what")/\1\"|; /^#include/p" "${twins[@]}" | sort -u
    number=0
    for twin in "${twins[@]}"; do
      if grep -q '^template <>' "$twin"; then continue; fi
      printf 'namespace twin_%d {\n#include "%s"\n}\n' $((number += 1)) "$twin"
    done
    for twin in "${twins[@]}"; do  # a specialisation stands in no other namespace than its template
      if grep -q '^template <>' "$twin"; then printf '#include "%s"\n' "$twin"; fi
    done
    [[ -z $last_line ]] || printf '#error %s\n' "$last_line"
  } >"$unit"
  if [[ -z $last_line ]]; then
    output=$("${command[@]}" "$unit" 2>&1) || fail "a clean twin does not compile" "$unit"
  else
    output=$("${command[@]}" "$unit" 2>&1)
    errors=$(errors_of "$output")
    [[ $errors == *"error: #error $last_line" && $errors != *$'\n'* ]] || fail "a clean twin does not compile" "$unit"
  fi
  exit 0
fi

source=${what}_fail.cpp
[[ -f ${what}_clean.cpp ]] || fail "there is no clean twin beside" "$source"
sentence=$(sed -n 's|^// expected-error: *||p' "$source") || fail "cannot read" "$source"
[[ -n $sentence && $sentence != *$'\n'* ]] || fail "there must be one line '// expected-error: sentence'" "$source"
output=$("${command[@]}" "$source" 2>&1) && fail "it compiles, but must be refused" "$source"

errors=$(errors_of "$output")
count=$(grep -c . <<<"$errors")
[[ $count == 1 ]] || fail "$count errors, but one is expected" "$source"
[[ $errors == *"$sentence"* ]] || fail "the error does not say: $sentence" "$source"
