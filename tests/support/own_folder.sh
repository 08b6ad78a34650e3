#!/usr/bin/env bash
# own_folder.sh COMMAND...: runs it with a folder of its own for temporary files, TMPDIR. Open MPI 4 keeps what belongs
# to a job in one folder of all jobs of a user; an mpirun does not start ("mkdir: File exists") if another one that ends
# removes this folder at that moment.
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/test.XXXXXX") || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
"$@"
