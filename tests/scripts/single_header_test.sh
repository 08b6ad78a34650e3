#!/usr/bin/env bash
# scripts/single-header gives one self-contained file, the same every time, and --check notices a stale one.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts" "$work/include/trireme/a"
cp "$root/scripts/single-header" "$work/scripts/"
cd "$work/include/trireme"
echo '#define TRIREME_VERSION "1.2.3"' >version.hpp
lines() { printf '%s\n' '#pragma once' "$@"; }
lines '#include <vector>' '#include "trireme/a/b.hpp"' '#include "trireme/a/c.hpp"' \
  '#include "trireme/a/f.hpp"' 'int main_header;' >trireme.hpp
lines '#include <vector>' '#ifdef X' '#include <map>' '#endif' '#include <map>' 'int b;' >a/b.hpp
lines '#include "trireme/a/e.hpp"' '#include "trireme/a/b.hpp"' \
  '#define V 1' '#include "d.inl"' '#undef V' '#define V 2' '#include "d.inl"' >a/c.hpp
lines '#include "trireme/a/c.hpp"' 'int e;' >a/e.hpp  # which c.hpp includes in turn
echo 'int d[V];' >a/d.inl
lines 'int f;' '#ifndef TRIREME_COMPILED' '#include "trireme/a/f.ipp"' '#endif' >a/f.hpp
lines '#include "trireme/a/f.hpp"' '#include "trireme/a/g.hpp"' 'int body;' >a/f.ipp
lines 'int g;' >a/g.hpp

"$work/scripts/single-header"
made=$work/single_include/trireme.hpp
count() { grep -cF "$1" "$made"; }
[[ $(count '#include <vector>') == 1 ]]  # deduplicated
[[ $(count '#include <map>') == 2 ]]     # one of them only under a condition
[[ $(count 'int b;') == 1 ]]             # a header once
[[ $(count 'int e;') == 1 && $(count 'int main_header;') == 1 ]]
[[ $(count 'int d[V];') == 2 ]]          # a fragment at every place
[[ $(count 'int body;') == 1 && $(count 'int f;') == 1 && $(count 'int g;') == 1 ]]
refused() { if "$@" 2>/dev/null; then exit 1; fi; }  # a plain `!` would not end the script
refused grep -q TRIREME_COMPILED "$made"  # bodies are always there
[[ $(count '#pragma once') == 1 ]]
grep -q 'Trireme 1\.2\.3' "$made"
refused grep -q '"trireme/' "$made"

"$work/scripts/single-header" --check
digest=$(grep 'SHA-256' "$made")
echo 'int changed[V];' >a/d.inl
refused "$work/scripts/single-header" --check
"$work/scripts/single-header"
[[ $(grep 'SHA-256' "$made") != "$digest" ]]

# An own header inside #if would vanish where it is included first: refused.
lines '#ifdef X' '#include "trireme/a/b.hpp"' '#endif' >a/c.hpp
refused "$work/scripts/single-header"
