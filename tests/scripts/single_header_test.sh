#!/usr/bin/env bash
# scripts/single-header gives self-contained files, the same every time, and --check notices a stale one.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts" "$work/include/trireme/a/detail"
cp "$root/scripts/single-header" "$work/scripts/"
cd "$work/include/trireme"
echo '#define TRIREME_VERSION "1.2.3"' >version.hpp
lines() { printf '%s\n' '#pragma once' "$@"; }
lines '#include <vector>' '#include "trireme/a/b.hpp"' '#include "trireme/a/c.hpp"' 'int main_header;' >trireme.hpp
lines '#include <vector>' '#ifdef X' '#include <map>' '#endif' '#include <map>' 'int b;' >a/b.hpp
lines '#include "trireme/a/e.hpp"' '#include "trireme/a/b.hpp"' \
  '#define V 1' '#include "d.inl"' '#undef V' '#define V 2' '#include "d.inl"' >a/c.hpp
lines '#include "trireme/a/c.hpp"' 'int e;' >a/e.hpp  # which c.hpp includes in turn
echo 'int d[V];' >a/d.inl
# Apart from trireme.hpp: two doors with one detail in common, a door that another one includes, and what needs CUDA.
lines '#include "trireme/a/detail/f.hpp"' '#include "trireme/a/b.hpp"' '#include <set>' 'int first_door;' >a/first.hpp
lines '#include "trireme/a/detail/f.hpp"' '#include "trireme/a/detail/g.hpp"' '#include <set>' 'int second_door;' \
  >a/second.hpp
lines '#include "trireme/a/detail/g.hpp"' '#include "trireme/a/second.hpp"' 'int third_door;' >a/third.hpp
lines '#include "trireme/a/c.hpp"' '#include <set>' 'int f;' >a/detail/f.hpp
lines '#include <map>' 'int g;' >a/detail/g.hpp
lines 'int cuda;' >a/cuda.hpp
lines '#include "trireme/a/b.hpp"' >a/a.hpp
sed -i '1a #include "trireme/a/a.hpp"' trireme.hpp
# Bodies, which a compiled library would hold.
lines 'int h;' '#ifndef TRIREME_COMPILED' '#include "trireme/a/h.ipp"' '#endif' >a/h.hpp
lines '#include "trireme/a/h.hpp"' 'int body;' >a/h.ipp
sed -i '2a #include "trireme/a/h.hpp"' trireme.hpp

"$work/scripts/single-header"
folder=$work/single_include/trireme made=$work/single_include/trireme/trireme.hpp
count() { grep -cF "$1" "$made"; }
[[ $(count '#include <vector>') == 1 ]]  # deduplicated
[[ $(count '#include <map>') == 2 ]]     # one of them only under a condition
[[ $(count 'int b;') == 1 ]]             # a header once
[[ $(count 'int e;') == 1 && $(count 'int main_header;') == 1 ]]
[[ $(count 'int d[V];') == 2 ]]          # a fragment at every place
[[ $(count '#pragma once') == 1 ]]
grep -q 'Trireme 1\.2\.3' "$made"
refused() { if "$@" 2>/dev/null; then exit 1; fi; }  # a plain `!` would not end the script
refused grep -q '"trireme/' "$made"
[[ $(count 'int body;') == 1 && $(count 'int h;') == 1 ]]
refused grep -q TRIREME_COMPILED "$made"  # bodies are always there

cd "$folder"
[[ $(find . -name '*.hpp' | LC_ALL=C sort | tr '\n' ' ') == \
  './a/a.hpp ./a/first.hpp ./a/second.hpp ./a/third.hpp ./trireme.hpp ./version.hpp ' ]]
own_includes() { sed -n 's/^#include "\(.*\)"/\1/p' "$1" | tr '\n' ' '; }
[[ $(own_includes version.hpp) == 'trireme/trireme.hpp ' && $(own_includes a/a.hpp) == 'trireme/trireme.hpp ' ]]
[[ $(own_includes a/second.hpp) == 'trireme/trireme.hpp ' ]]
[[ $(own_includes a/third.hpp) == 'trireme/trireme.hpp trireme/a/second.hpp ' ]]
refused grep -q 'int [bg];' a/third.hpp  # which trireme.hpp and second.hpp hold
for header in version a/a a/first a/second a/third; do echo "#include \"trireme/$header.hpp\""; done >"$work/all.cpp"
g++ -E -P -I "$work/single_include" "$work/all.cpp" >"$work/seen"
for name in first_door second_door third_door main_header b f g; do
  [[ $(grep -cxF "int $name;" "$work/seen") == 1 ]]
done
cd "$work/include/trireme"

"$work/scripts/single-header" --check
digest=$(grep 'SHA-256' "$made")
echo 'int changed[V];' >a/d.inl
refused "$work/scripts/single-header" --check
"$work/scripts/single-header"
[[ $(grep 'SHA-256' "$made") != "$digest" ]]

# A file that is made no more.
rm a/first.hpp
refused "$work/scripts/single-header" --check
"$work/scripts/single-header"
[[ ! -e $folder/a/first.hpp ]]
"$work/scripts/single-header" --check

# An own header inside #if would vanish where it is included first: refused.
lines '#ifdef X' '#include "trireme/a/b.hpp"' '#endif' >a/c.hpp
refused "$work/scripts/single-header"
