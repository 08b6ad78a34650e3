# Sourced by the tests of programs under mpirun: builds one program for each MPI of this machine.
#   mpi_begin SOURCE    (beside the test) as $folder/default/program, $folder/mpich/program in a new $folder that goes
#                       with the test; sets `mpis` to those that there are, and ends the test if there is none. The
#                       compiler gets $mpi_flags, too
#   mpi_run MPI         the command that starts its ranks
#   mpi_is_open MPI     whether it is Open MPI
#   mpi_apart MPI FILE  options for that command by which what rank N prints goes into FILE.N, where lines of ranks that
#                       print at once would be cut into each other (MPICH from 4.2 on)
#   mpi_own_folder      in a subshell, before it starts a job: one of several at the same time (see own_folder.sh)
#   mpi_timeout SECONDS COMMAND...   as timeout(1) does for mpirun: 124 if it had to be ended. Mpirun of Open MPI 4 can
#                       lose the end of a rank (seen once in some hundred programs of MPI_Init and MPI_Allreduce alone,
#                       one of whose ranks was killed): all ranks have ended, and it waits for ever. It is ended then,
#                       with 1, since a rank that fails is what these tests are about

mpi_compiler() { [ "$1" = mpich ] && echo mpicxx.mpich || echo mpicxx; }
mpi_run() { [ "$1" = mpich ] && echo mpirun.mpich || echo mpirun; }
mpi_is_open() { case $("$(mpi_run "$1")" --version 2>&1) in *'Open MPI'*) true ;; *) false ;; esac; }
mpi_apart() { mpi_is_open "$1" || echo -outfile-pattern "$2.%r"; }

mpi_own_folder() {
  TMPDIR=$(mktemp -d "$folder/job.XXXXXX")
  export TMPDIR
}

mpi_timeout() {
  local left=$(($1 * 5)) ended=0 had_ranks='' pid
  shift
  "$@" &
  pid=$!
  while kill -0 $pid; do
    if ps -o stat= --ppid $pid | grep -qv '^Z'; then
      had_ranks=1
      ended=0
    else
      ended=$((ended + 1))
    fi
    if [ $left -eq 0 ]; then
      kill -TERM $pid
      sleep 5
      kill -KILL $pid
      wait $pid
      return 124
    elif [ -n "$had_ranks" ] && [ $ended -ge 50 ]; then
      echo "all ranks of $* have ended, and mpirun has not"
      kill -KILL $pid
      wait $pid
      return 1
    fi
    left=$((left - 1))
    sleep 0.2
  done 2> /dev/null
  wait $pid
}

mpi_begin() {
  command -v mpicxx mpirun > /dev/null || { echo "skipped: no mpicxx and mpirun here"; exit 77; }
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  mpi_build "$(cd "$(dirname "$0")" && pwd)/$1" "$folder" || exit 1
}

mpi_build() { # SOURCE FOLDER
  local mpi pids='' pid include library=${TRIREME_BINARY_DIR-}/libtrireme_compiled.a
  mpis=''
  include=${TRIREME_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}/include
  # With the libraries of this build, if they are newer than all headers, each program takes half of the time.
  if [ -n "${mpi_flags-}" ] || [ ! -e "$library" ] || [ -n "$(find "$include" -newer "$library" -print -quit)" ] ||
    grep -qE '^CMAKE_CXX_FLAGS:.*(-fsanitize|--coverage)' "$TRIREME_BINARY_DIR/CMakeCache.txt"; then
    library=''
  fi
  for mpi in default mpich; do
    command -v "$(mpi_compiler $mpi)" "$(mpi_run $mpi)" > /dev/null || continue
    # Debian's mpicxx may be MPICH's own.
    [ $mpi = mpich ] && [ "$(command -v mpirun)" -ef "$(command -v mpirun.mpich)" ] && continue
    mkdir -p "$2/$mpi"
    mpi_build_one "$1" "$2/$mpi/program" &
    pids="$pids $!"
    mpis="$mpis $mpi"
  done
  for pid in $pids; do wait "$pid" || return 1; done
  [ -n "$mpis" ]
}

mpi_build_one() { # SOURCE PROGRAM, for $mpi
  local compiler flags bodies=''
  compiler=$(mpi_compiler $mpi)
  # What comm/mpi.hpp needs is in a library for each MPI.
  if [ -n "$library" ] && [ $mpi = mpich ]; then
    bodies=$TRIREME_BINARY_DIR/tests/libtrireme_compiled_mpich.a
  elif [ -n "$library" ] &&
    grep -q "^MPI_CXX_COMPILER:.*=$(command -v "$compiler")\$" "$TRIREME_BINARY_DIR/CMakeCache.txt"; then
    bodies=$TRIREME_BINARY_DIR/libtrireme_compiled_mpi.a
  fi
  if [ ! -e "$bodies" ] || [ -n "$(find "$include" -newer "$bodies" -print -quit)" ]; then bodies=''; fi
  flags="${mpi_flags-} -pthread ${library:+-DTRIREME_COMPILED} ${bodies:+-DTRIREME_COMPILED_MPI}"
  # Two steps, so that ccache has what another test compiles, too.
  # shellcheck disable=SC2086
  $(command -v ccache) "$compiler" -std=c++20 -O0 $flags -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX -I"$include" \
    -isystem /usr/include/eigen3 -DFMT_HEADER_ONLY=1 -c "$1" -o "$2.o" &&
    "$compiler" $flags "$2.o" $bodies $library ${library:+-lfmt} -o "$2"
}
