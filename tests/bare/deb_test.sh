#!/usr/bin/env bash
# test-timeout: 900
# test-waits: 60
# The Debian package that cpack makes: apt installs it, with what it depends on, on a machine that has nothing, where a
# program is then built with pkg-config and with find_package.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
for tool in cpack dpkg-deb; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake -S "$root" -B "$work" -DTRIREME_BUILD_TESTS=OFF -DTRIREME_BUILD_EXAMPLES=OFF -DTRIREME_MPI=OFF \
  -DTRIREME_CUDA=OFF -DTRIREME_TORCH=OFF >/dev/null
(cd "$work" && cpack -G DEB)
package=("$work"/libtrireme-dev_*_all.deb)
depends=$(dpkg-deb --field "${package[0]}" Depends)
[[ $depends == *libeigen3-dev* && $depends == *libfmt-dev* ]] || { echo "the package depends on $depends"; exit 1; }
if [[ -n ${TRIREME_BARE_MACHINE:-} ]]; then
  echo "skipped: this is a bare machine already"
  exit 77
fi
"$root/scripts/bare-machine" bash -euo pipefail -c '
  cat >/tmp/libtrireme-dev.deb
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || true
  apt-get install -y -qq --no-install-recommends /tmp/libtrireme-dev.deb g++ pkgconf cmake make >/tmp/apt.log 2>&1 ||
    { cat /tmp/apt.log; exit 1; }
  mkdir /tmp/consumer && cd /tmp/consumer
  cat >main.cpp <<"END"
#include <trireme/trireme.hpp>
int main() { return trireme::tensor<float>({2, 3}).size() == 6 ? 0 : 1; }
END
  cat >CMakeLists.txt <<"END"
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(trireme 0.1 REQUIRED)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE trireme::trireme)
END
  g++ -std=c++20 main.cpp -o with_pkg_config $(pkg-config --cflags --libs trireme) && ./with_pkg_config
  cmake -S . -B build >/dev/null && cmake --build build && build/consumer
  apt-get remove -y -qq libtrireme-dev >/dev/null
  [[ ! -e /usr/include/trireme && ! -e /usr/share/trireme ]] || { echo "removed, the package leaves files"; exit 1; }
' <"${package[0]}"
