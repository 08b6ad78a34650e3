#!/usr/bin/env bash
# create_test.sh [cuda]
#
# Makes the Conan package offline, in a Conan home of its own, and builds and runs its test package. With the argument
# cuda, once more with the option of that name: the test package then compiles one file of kernels with nvcc.
# TRIREME_PYTHON names an interpreter that has the package conan; without one the test is skipped (exit code 77).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${TRIREME_PYTHON:-python3}
if ! "$python" -c 'import conans.conan' 2>/dev/null; then
  echo "skipped: $python has no Conan"
  exit 77
fi
conan() { "$python" -c 'import sys; from conans.conan import main; main(sys.argv[1:])' "$@"; }
CONAN_HOME=$(mktemp -d)
export CONAN_HOME
trap 'rm -rf "$CONAN_HOME"' EXIT
conan profile detect
create() {
  conan create "$here" --no-remote -s compiler.cppstd=20 --test-folder "$here/test_package" \
    -c tools.cmake.cmaketoolchain:generator=Ninja -c "tools.cmake.cmake_layout:test_folder=$CONAN_HOME/test" "$@"
}
create
conan list 'trireme/*'
if ! grep -rlq --include=CMakeCache.txt '^TRIREME_CUDA:.*=OFF' "$CONAN_HOME"; then
  echo "no CMakeCache.txt of the package"
  exit 1
fi
if grep -rl --include=CMakeCache.txt CUDAToolkit "$CONAN_HOME"; then
  echo "without the option cuda, CMake has looked for CUDA (see the files above)"
  exit 1
fi
if [[ ${1-} == cuda ]]; then create -o '&:cuda=True'; fi
