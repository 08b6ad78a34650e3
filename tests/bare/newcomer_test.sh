#!/usr/bin/env bash
# test-timeout: 4800
# test-waits: 600
# newcomer_test.sh [bookworm|trixie]
#
# The first commands of somebody new, on a Debian (12, unless told otherwise) with git and nothing else. Each works, and
# works once more after the others have installed what they ask for.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
if [[ -n ${TRIREME_BARE_MACHINE:-} ]]; then
  echo "skipped: this is a bare machine already"
  exit 77
fi
# What this machine has compiled spares the bare one eight minutes; it finds all else by itself.
if [[ -z ${CCACHE_DIR:-} ]] && command -v ccache >/dev/null; then
  CCACHE_DIR=$(ccache --get-config cache_dir)
  export CCACHE_DIR
fi
"$root/scripts/bare-machine" --suite "${1:-bookworm}" bash -uo pipefail -c '
  do_it() {  # do_it COMMAND...
    echo "== $*"
    local begin=$SECONDS
    "$@" >/tmp/output 2>&1 || { status=$?; cat /tmp/output; echo "exit code $status: $*"; exit 1; }
    tail -n 3 /tmp/output
    echo "== after $((SECONDS - begin)) s"
  }
  contains() { grep -qF -- "$2" "$1" || { cat "$1"; echo "\"$2\" is missing in $1"; exit 1; }; }

  do_it ./scripts/train --steps 20
  contains /tmp/output "done after 20 of 20 steps"
  if command -v mpirun >/dev/null || [[ -e /usr/include/catch2 ]]; then
    echo "scripts/train has installed MPI or Catch2, which it does not need"
    exit 1
  fi
  do_it ./scripts/train --mpi --steps 20 --name processes
  contains /tmp/output "done after 20 of 20 steps"
  do_it ./scripts/test -R "^core"
  contains /tmp/output " passed, 0 failed, 0 skipped"
  do_it ./scripts/benchmark gpt --ours-only --rounds 1
  contains /tmp/output trireme_tokens_per_second

  # What an earlier scripts/benchmark left: on Debian 12 this package has a CMake file that ends the configuration.
  do_it apt-get install -y --no-install-recommends libdnnl-dev
  do_it ./scripts/train --steps 20 --name again
  contains build/train.log "no work to do"
  do_it ./scripts/train --mpi --steps 20 --name processes-again
  contains build/train.log "no work to do"
  do_it ./scripts/test -R "^core"
  contains /tmp/output " passed, 0 failed, 0 skipped"
  do_it ./scripts/benchmark gpt --ours-only --rounds 1
  contains /tmp/output trireme_tokens_per_second
  contains build/benchmark.log "no work to do"
  do_it cmake --preset benchmark
  if grep "DNNL.*left out" /tmp/output; then exit 1; fi
'
