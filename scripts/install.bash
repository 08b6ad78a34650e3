# Sourced by the other scripts: installs what a machine lacks, and only that.

# need PATH-OR-COMMAND PACKAGE...: notes the packages unless the command or (with a /) a file of that pattern is there.
missing_packages=()
need() {
  local what=$1
  shift
  if [[ $what == */* ]]; then
    compgen -G "$what" >/dev/null && return 0
  else
    command -v "$what" >/dev/null && return 0
  fi
  missing_packages+=("$@")
}

# install_missing: installs what need() noted, as root or by sudo. Fails with one sentence a package that stays missing.
install_missing() {
  ((${#missing_packages[@]})) || return 0
  local -a as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || { echo "missing: ${missing_packages[*]} (neither root nor sudo)" >&2; return 1; }
    as_root=(sudo)
  fi
  echo "installing: ${missing_packages[*]}"
  "${as_root[@]}" apt-get update -qq || true
  local package status=0
  if ! DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
      "${missing_packages[@]}" </dev/null >/dev/null; then
    # One package that cannot be had must not keep the others away.
    for package in "${missing_packages[@]}"; do
      DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
        "$package" </dev/null >/dev/null || { echo "could not install $package" >&2; status=1; }
    done
  fi
  missing_packages=()
  return $status
}

# need_compiler: what every build needs.
need_compiler() {
  need g++ g++
  need cmake cmake
  need ninja ninja-build
  need ccache ccache
  need '/usr/include/eigen3/Eigen/Core' libeigen3-dev
  need '/usr/include/fmt/core.h' libfmt-dev
}

need_mpi() {
  need mpirun openmpi-bin
  need mpicxx libopenmpi-dev
}

# need_mpich: a second MPI beside it, for the tests and benchmarks that compare.
need_mpich() {
  need mpirun.mpich mpich
  need mpicxx.mpich libmpich-dev
}

# usable_cores: those that this shell may use (taskset, a cpuset), and no more than the time that control groups grant,
# as trireme::usable_cores() counts them. OMP_NUM_THREADS, which nproc minds, is about threads, not about the machine.
usable_cores() {
  local n id controllers path folder quota period
  n=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
  while IFS=: read -r id controllers path; do
    case ,$controllers, in
      ,,) folder=/sys/fs/cgroup ;;
      *,cpu,*) folder=/sys/fs/cgroup/cpu ;;
      *) continue ;;
    esac
    while :; do
      quota='' period=''
      if [[ -r $folder$path/cpu.max ]]; then
        read -r quota period < "$folder$path/cpu.max" || true
      elif [[ -r $folder$path/cpu.cfs_quota_us && -r $folder$path/cpu.cfs_period_us ]]; then
        quota=$(< "$folder$path/cpu.cfs_quota_us") period=$(< "$folder$path/cpu.cfs_period_us")
      fi
      if [[ $quota =~ ^[1-9][0-9]*$ && $period =~ ^[1-9][0-9]*$ ]]; then
        quota=$((quota / period))
        n=$((quota < 1 ? 1 : quota < n ? quota : n))
      fi
      [[ $path == */* && -n $path ]] || break
      path=${path%/*}
    done
  done < <(cat /proc/self/cgroup 2> /dev/null)
  echo "$n"
}

# cores: how many builds to run at once; a compiler process of this library may take 3 GB.
cores() {
  local fit n
  fit=$(awk '/MemAvailable/ { print int($2 / 3000000) }' /proc/meminfo)
  n=$(usable_cores)
  echo $((fit < 1 ? 1 : fit < n ? fit : n))
}
