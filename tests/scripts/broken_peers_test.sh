#!/usr/bin/env bash
# test-timeout: 180
# A library to compare with, an MPI or a CUDA that is half installed is left out with one line, and fails nothing else.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "$1"; failures=$((failures + 1)); }

# Headers and libraries in name only; CMake files that end whoever reads them; compilers that do not compile.
fake=$work/fake
mkdir -p "$fake"/{bin,include/gloo/transport/tcp,lib/cmake/dnnl,lib64,share/cmake/Gloo}
echo '#error "half installed"' |
  tee "$fake"/include/{dnnl.hpp,cblas.h,mpi.h,nccl.h,cuda_runtime.h,gloo/transport/tcp/device.h} >/dev/null
for library in dnnl openblas gloo mpich nccl cudart; do echo garbage >"$fake/lib/lib$library.so"; done
cp "$fake/lib/libcudart.so" "$fake/lib64/"
echo 'message(FATAL_ERROR "this package demands OpenCL")' |
  tee "$fake"/lib/cmake/dnnl/dnnl-config.cmake "$fake"/share/cmake/Gloo/GlooConfig.cmake >/dev/null
for tool in mpicxx mpic++ mpiCC mpicxx.openmpi mpicxx.mpich mpiexec mpirun mpirun.mpich; do
  printf '#!/bin/sh\necho "cannot find libmpi" >&2\nexit 1\n' >"$fake/bin/$tool"
done
printf '#!/bin/sh\ncase "$*" in *version*) echo "Cuda compilation tools, V13.0.48" ;; *) exit 1 ;; esac\n' \
  >"$fake/bin/nvcc"
chmod +x "$fake"/bin/*

# configure: all of the project, with the fakes before what this machine has.
configure() {
  PATH=$fake/bin:$PATH CMAKE_PREFIX_PATH=$fake CUDA_PATH=$fake PKG_CONFIG_LIBDIR=$fake \
    cmake -G Ninja -S "$root" -B "$work/build" -DTRIREME_BUILD_BENCHMARKS=ON >"$work/log" 2>&1 && return
  cat "$work/log"
  fail "nothing can be configured"
}
# left_out LINES WORDS: how many lines of the log say that something is left out.
left_out() {
  local lines
  lines=$(grep -cE "trireme: .*$2.*left out" "$work/log")
  ((lines == $1)) || { grep trireme: "$work/log"; fail "$lines lines instead of $1 say that $2 is left out"; }
}
configure
for library in DNNL OPENBLAS GLOO; do left_out 1 "$library"; done
left_out 1 'trireme::mpi'
left_out 1 'mpicxx.openmpi'
left_out 1 'mpicxx.mpich'
left_out 1 "nvcc.*kernel"
for kind in include lib; do
  if grep -q "$fake/$kind" "$work/build/build.ninja"; then fail "programs are built with what is broken in $kind"; fi
done

# Once it is mended, it is used.
if real=$(command -v mpicxx); then
  rm "$fake/include/mpi.h"
  for tool in mpicxx mpic++ mpiCC; do printf '#!/bin/sh\nexec %s "$@"\n' "$real" >"$fake/bin/$tool"; done
  configure
  left_out 0 'trireme::mpi'
fi
exit $((failures > 0))
