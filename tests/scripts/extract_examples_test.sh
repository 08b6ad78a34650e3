#!/usr/bin/env bash
# scripts/extract-examples takes the marked blocks, all of them and nothing else.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/page.md" <<'PAGE'
```cpp
not marked
```
<!-- example: first -->
```cpp
int first_half;
```
text

<!-- example: other ranks=2 -->

```cpp
int other;
```
<!-- example: first -->
```cpp
int second_half;
```
PAGE
names=$("$root/scripts/extract-examples" "$work/out" "$work/page.md" "$work/missing.md")
[[ $names == $'first\nother' ]]
[[ $(<"$work/out/first.cpp") == $'int first_half;\nint second_half;' ]]
[[ $(<"$work/out/other.cpp") == $'// test-ranks: 2\nint other;' ]]

# Nothing is rebuilt for a file that stays as it is.
touch -d '2020-01-01' "$work/out/first.cpp"
"$root/scripts/extract-examples" "$work/out" "$work/page.md" >/dev/null
[[ $(stat -c %Y "$work/out/first.cpp") == $(date -d '2020-01-01' +%s) ]]

# A mark without a block is an error, not an example that is silently never tried.
printf '<!-- example: lost -->\nwords\n' >"$work/page.md"
if "$root/scripts/extract-examples" "$work/out" "$work/page.md" 2>/dev/null; then exit 1; fi
