#!/usr/bin/env bash
# refused.sh COMPILER [FLAGS...]: each line `// expected-error: sentence` of refused.cpp is one error of the compiler,
# and there is no other. One unit for all of them, because reading LibTorch takes most of the time.
set -uo pipefail
source=$(dirname "$0")/refused.cpp
compiler=$1
shift
if output=$("$compiler" -std=c++20 "$@" -fsyntax-only "$source" 2>&1); then
  echo "it compiles, but must be refused"
  exit 1
fi
errors=$(grep -E '(^|[ :)])error: ' <<<"$output")
failures=0
number=0
while IFS= read -r sentence; do
  number=$((number + 1))
  found=$(grep -cF -- "$sentence" <<<"$errors")
  ((found == 1)) || { echo "$found errors say: $sentence"; failures=1; }
done < <(sed -n 's|^// expected-error: *||p' "$source")
count=$(grep -c . <<<"$errors")
((number > 0 && count == number)) || { echo "$count errors for $number mistakes"; failures=1; }
((failures == 0)) || printf '%s\n' "$errors"
exit $failures
