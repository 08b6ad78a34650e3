#!/usr/bin/env bash
# docs/commands.md shows what turns examples/torch_single.cpp into torch_ddp.cpp (without their first lines, which say
# how to start them), and neither is long.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
without_comment() { sed '/^\/\//d' "$root/examples/$1.cpp"; }
shown=$(awk '/^```diff$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$root/docs/commands.md")
real=$(diff -U1 <(without_comment torch_single) <(without_comment torch_ddp) | sed -E '1,2d; s/^@@.*/@@/' || true)
diff <(echo "$shown") <(echo "$real") || { echo "docs/commands.md shows another diff (<) than there is (>)"; exit 1; }
for name in torch_single torch_ddp; do
  lines=$(wc -l <"$root/examples/$name.cpp")
  ((lines <= 60)) || { echo "examples/$name.cpp has $lines lines, more than 60"; exit 1; }
done
