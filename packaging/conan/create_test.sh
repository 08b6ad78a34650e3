#!/usr/bin/env bash
# create_test.sh [cuda]
#
# Makes the Conan package offline, in a Conan home of its own, and builds and runs its test package: with the system's
# Eigen and fmt, and with packages of Conan that stand for them. With the argument cuda, once more with the option of
# that name: the test package then compiles one file of kernels with nvcc.
# TRIREME_PYTHON names an interpreter that has the package conan; without one the test is skipped (exit code 77).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
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
  conan create "$root" --no-remote -s compiler.cppstd=20 -c tools.cmake.cmaketoolchain:generator=Ninja \
    -c "tools.cmake.cmake_layout:test_folder=$CONAN_HOME/test" "$@"
}
of_system=(-o '&:system_eigen=True' -o '&:system_fmt=True')
fail() { echo "$1"; exit 1; }

create "${of_system[@]}"
conan list 'trireme/*'
grep -rlq --include=CMakeCache.txt '^TRIREME_CUDA:.*=OFF' "$CONAN_HOME" || fail "no CMakeCache.txt of the package"
if grep -rl --include=CMakeCache.txt CUDAToolkit "$CONAN_HOME"; then
  fail "without the option cuda, CMake has looked for CUDA (see the files above)"
fi
for folder in "$CONAN_HOME"/p/*/; do  # Conan's own folders are b, t and one a recipe
  [[ $(basename "$folder") =~ ^(b|t|trire.*)$ ]] || fail "the recipe has written $folder, outside of its own folders"
done
stray=$(find "$CONAN_HOME/p" -name CMakeUserPresets.json)
[[ -z $stray ]] || fail "the recipe has written $stray"

# Packages with the names that Conan Center has, made of the system's files; what was found where says CMake's cache.
stand_in() {  # stand_in NAME VERSION CMAKE_FILE CMAKE_TARGET FOLDER
  mkdir -p "$CONAN_HOME/stand_in/$1"
  cat >"$CONAN_HOME/stand_in/$1/conanfile.py" <<RECIPE
from conan import ConanFile


class StandIn(ConanFile):
    name = "$1"
    version = "$2"

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "$3")
        self.cpp_info.set_property("cmake_target_name", "$4")
        self.cpp_info.includedirs = ["$5"]
        self.cpp_info.defines = ["FMT_HEADER_ONLY=1"]
RECIPE
  conan export "$CONAN_HOME/stand_in/$1"
}
eigen=$(pkg-config --variable=includedir eigen3 2>/dev/null || true)
stand_in eigen 3.4.0 Eigen3 Eigen3::Eigen "${eigen:-/usr/include}/eigen3"
mkdir "$CONAN_HOME/headers"
ln -s "$(echo '#include <fmt/core.h>' | c++ -E -x c++ - | sed -n 's|^# .*"\(.*/fmt\)/core.h".*|\1|p' | head -n 1)" \
  "$CONAN_HOME/headers/fmt"
stand_in fmt 10.2.1 fmt fmt::fmt "$CONAN_HOME/headers"
rm -rf "$CONAN_HOME/test"
create --build=missing
for library in Eigen3 fmt; do
  grep -rq --include=CMakeCache.txt "^${library}_DIR:PATH=$CONAN_HOME/test/" "$CONAN_HOME/test" ||
    fail "the consumer has not found the $library that the package requires of Conan"
done

# What is not CMake reads the components.
conan install --requires="trireme/[*]" --no-remote -s compiler.cppstd=20 -g PkgConfigDeps -of "$CONAN_HOME/pc"
grep -q '^Requires: .*fmt' "$CONAN_HOME/pc/trireme.pc" || fail "trireme.pc does not require fmt"
for component in mpi cuda nccl torch utf8proc sentencepiece zlib hdf5 pictures; do
  grep -qE '^Requires: *trireme' "$CONAN_HOME/pc/trireme-$component.pc" || fail "there is no component $component"
done

if [[ ${1-} == cuda ]]; then create "${of_system[@]}" -o '&:cuda=True'; fi
