#!/usr/bin/env bash
# readers.sh [PAGE...]: does what a reader of README.md and of each page of docs/start does, in the folder of a clone:
# saves the program and types the commands as they stand there. Prints the seconds to the end of the last command,
# and what it printed. For a machine that has nothing:
#
#   scripts/bare-machine tests/bare/readers.sh
#
# The table of docs/start/README.md has its figures. A page whose program needs a GPU is left out.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
export DEBIAN_FRONTEND=noninteractive
((EUID != 0)) || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
pages=("$@")
((${#pages[@]})) || pages=(README.md docs/start/{own_loop,gpt,compare_strategies,mpi_solver,libtorch}.md)
failed=0
apt-get update -qq || true
apt-get install -y -qq --no-install-recommends g++ libeigen3-dev libfmt-dev >/dev/null 2>&1  # docs/start/README.md
for page in "${pages[@]}"; do
  awk '/^```cpp/ { inside = 1; next } /^```/ && inside { exit } inside' "$page" >start.cpp
  [[ $page == README.md ]] && cp start.cpp sine.cpp
  # The first lines behind the program that are commands, with those that continue them.
  commands=$(awk '/^```$/ { behind = 1 }
                  /^## / && behind { exit }
                  behind && /^    (\$ )?(apt-get|g\+\+|mpicxx|mpirun) / { on = 1 }
                  on { print; on = /\\$/ }' "$page" |
    sed -E 's/^    (\$ )?//; s/apt-get install /&-y -qq --no-install-recommends /')
  echo "== $page"
  echo "$commands"
  begin=$(date +%s.%N)
  if bash -euo pipefail -c "$commands" >said 2>&1; then
    awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { printf "== after %.0f s:\n", b - a }'
    tail -n 6 said
  else
    echo "== failed:"
    tail -n 20 said
    failed=1
  fi
  rm -f start.cpp sine.cpp a.out said
done
exit $failed
