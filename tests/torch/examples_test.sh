#!/usr/bin/env bash
# docs/torch.md says how many lines of an example several ranks need, and how many they change: as they are marked.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
failures=0
for name in torch_mnist torch_dcgan; do
  source=$root/examples/$name.cpp
  lines=$(grep -v '^//' "$source" | grep -c .)
  told="$(grep -cE '[^ ] +// \+$' "$source") added and $(grep -cE '[^ ] +// \*$' "$source") changed of $lines"
  grep -qF "$told in" "$root/docs/torch.md" || { echo "docs/torch.md does not say of $name: $told"; failures=1; }
done
exit $failures
