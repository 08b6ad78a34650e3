#!/usr/bin/env bash
# test-timeout: 600
# However a job under mpirun is ended (a rank killed, mpirun killed, terminated or interrupted), five seconds later none
# of its processes is left, and nothing of this library's in /dev/shm or its folder for temporary files: in shared
# memory and by messages, with each MPI of this machine. What MPI itself leaves is printed.
set -u
# shellcheck source=tests/comm/mpi_programs.bash
source "$(dirname "$0")/mpi_programs.bash"
mpi_begin mpi_failure.cpp

# The living processes of a job: they inherit its token.
processes_of() {
  local each
  for each in $(grep -lsz "^TRIREME_TEST_TOKEN=$1\$" /proc/[0-9]*/environ | cut -d/ -f3); do
    grep -qs '^State:.*Z' "/proc/$each/status" || echo "$each"
  done
}
# The jobs have a folder of their own, since other tests that run meanwhile make files in /tmp, too.
files() { ls -A /dev/shm "$folder/temporary" 2> /dev/null | sort; }
mkdir "$folder/temporary"

end_job() { # mpi, shared|messages, rank -KILL | mpirun -KILL | mpirun -TERM | mpirun -INT
  local at="$folder/$1.$2.$3$4" token="$$.$1.$2.$3$4" launcher victim left waited=0
  : > "$at.out"
  TRIREME_TEST_TOKEN=$token TMPDIR=$folder/temporary timeout 60 "$(mpi_run "$1")" -n 3 "$folder/$1/program" "$2" works \
    > "$at.out" 2> "$at.err" &
  while [ "$(grep -c 'is process' "$at.out")" -lt 3 ]; do
    sleep 0.1
    waited=$((waited + 1))
    [ $waited -lt 300 ] || { echo "$1 $2: the job did not start"; cat "$at.out" "$at.err"; return; }
  done
  sleep 0.2
  launcher=$(for each in $(processes_of "$token"); do
    grep -qsE '^(orterun|mpirun|mpiexec|prterun)' "/proc/$each/comm" && echo "$each"
  done | head -n 1)
  victim=$(sed -n 's/^rank 1 is process //p' "$at.out")
  [ "$3" = rank ] || victim=$launcher
  kill "$4" "$victim" || { echo "$1 $2 $3 $4: nothing to kill"; return; }
  for waited in $(seq 50); do
    left=$(processes_of "$token")
    [ -n "$left" ] || break
    sleep 0.1
  done
  for each in $left; do
    echo "$1 $2 $3 $4: after 5 s there is still process $each, $(tr '\0' ' ' < "/proc/$each/cmdline")"
    kill -KILL "$each"
  done
}

before=$(files)
for mpi in $mpis; do
  for how in shared messages; do
    end_job "$mpi" $how rank -KILL
    end_job "$mpi" $how mpirun -KILL
    end_job "$mpi" $how mpirun -TERM
    end_job "$mpi" $how mpirun -INT
  done
done > "$folder/wrong" 2>> "$folder/noise"
new=$(comm -13 <(echo "$before") <(files))
grep -i trireme <<< "$new" | sed 's/^/left behind: /' >> "$folder/wrong"
grep -E 'vader_segment|mpich|ompi\.' <<< "$new" | sed "s/^/MPI's own, left in \/dev\/shm or \$TMPDIR: /"
cat "$folder/wrong"
! grep -q . "$folder/wrong"
