#!/usr/bin/env bash
# must_not_compile.sh COMPILER RULE [FLAGS...]
# must_not_compile.sh COMPILER FOLDER [FLAGS...]
# must_not_compile.sh --together LIST COMPILER FOLDER [FLAGS...]
# must_not_compile.sh --unless LIST COMPILER RULE [FLAGS...]
#
# RULE_fail.cpp must be refused with exactly one error, on whose line the sentence of its line
# `// expected-error: sentence` stands. RULE_clean.cpp must compile, so that the refusal is for that reason alone: given
# a folder, all clean twins in it are compiled as one unit, each in a namespace of its own, because most of the time
# goes into reading the same headers. A pair that says `// test-compilers: g++ clang++` is left out for nvcc, which sees
# the source as CUDA, without Eigen and fmt.
#
# With --together all RULE_fail.cpp of a folder are compiled as one unit likewise, and LIST gets the rules that are
# refused: there must be as many errors as rules, each with the sentence of another one. With --unless a rule is
# compiled alone unless LIST has it. Not in LIST are rules that share a sentence, one whose sentence is missing, since a
# compiler may give an error once where two rules have it, and all of them if there is an error that none expects.
set -uo pipefail
list='' together=0
case $1 in
  --together) together=1 list=$2; shift 2 ;;
  --unless) list=$2; shift 2 ;;
esac
compiler=$1 what=$2
shift 2
if [[ -n $list ]] && ((!together)) && grep -qxF "$(realpath "$(dirname "$what")")/$(basename "$what")" "$list"; then
  exit 0
fi

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

# write_unit SOURCE...: one unit of them, each in a namespace but those with a specialisation.
write_unit() {
  # All headers first: those of a source are not read again in its namespace.
  sed -n "s|^#include \"\([a-z_]*\.hpp\)\"|#include \"$(realpath "$what")/\1\"|; /^#include/p" "$@" | sort -u
  local source number=0
  for source in "$@"; do
    if grep -q '^template <>' "$source"; then continue; fi
    printf 'namespace twin_%d {\n#include "%s"\n}\n' $((number += 1)) "$source"
  done
}

if [[ -d $what ]]; then
  unit=$(mktemp --suffix .cpp)
  trap 'rm -f "$unit"' EXIT
  twins=()
  for twin in "$(realpath "$what")"/*_clean.cpp; do
    if ((nvcc)) && grep -q '^// test-compilers: *g++ clang++$' "${twin%_clean.cpp}_fail.cpp"; then continue; fi
    twins+=("$twin")
  done
  ((${#twins[@]})) || exit 0
fi
if ((together)); then
  rules=() sentences=()
  for source in "$(realpath "$what")"/*_fail.cpp; do
    if ((nvcc)) && grep -q '^// test-compilers: *g++ clang++$' "$source"; then continue; fi
    [[ -f ${source%_fail.cpp}_clean.cpp ]] || fail "there is no clean twin beside" "$source"
    sentence=$(sed -n 's|^// expected-error: *||p' "$source")
    [[ -n $sentence && $sentence != *$'\n'* ]] || fail "there must be one line '// expected-error: sentence'" "$source"
    rules+=("${source%_fail.cpp}") sentences+=("$sentence")
  done
  united=() sources=()
  for i in "${!rules[@]}"; do
    ! grep -q '^template <>' "${rules[i]}_fail.cpp" || continue  # it would hold for the other rules, too
    for j in "${!rules[@]}"; do
      if ((i != j)) && [[ ${sentences[i]} == *"${sentences[j]}"* || ${sentences[j]} == *"${sentences[i]}"* ]]; then
        continue 2
      fi
    done
    united+=("$i") sources+=("${rules[i]}_fail.cpp")
  done
  found=() found_all=1
  if ((${#united[@]})); then
    write_unit "${sources[@]}" >"$unit"
    output=$("${command[@]}" "$unit" 2>&1)
    while IFS= read -r error; do
      of=-1
      for i in "${united[@]}"; do
        if [[ $error == *"${sentences[i]}"* && -z ${found[i]-} ]]; then of=$i; fi
      done
      if ((of < 0)); then found_all=0; else found[of]=1; fi
    done < <(errors_of "$output")
  fi
  {
    if ((found_all)); then
      for i in "${!found[@]}"; do echo "${rules[i]}"; done
    fi
  } >"$list"
  exit 0
fi
if [[ -d $what ]]; then
  {
    write_unit "${twins[@]}"
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
