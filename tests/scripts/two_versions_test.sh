#!/usr/bin/env bash
# test-timeout: 120
# test-takes: 4
# Two versions of the library in one process: a shared library with another version, compiled with hidden visibility,
# keeps its own functions and statics, and what it throws is a std::exception to the program.
set -euo pipefail
root=${TRIREME_SOURCE_DIR:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/other"
cp -r "$root/include/trireme" "$work/other/"
# The other version joins texts in another way, and says another number.
sed -i 's|return detail::join({detail::text_item(parts)|return "other: " + detail::join({detail::text_item(parts)|' \
  "$work/other/trireme/core/text.hpp"
sed -i 's/define TRIREME_VERSION ".*"/define TRIREME_VERSION "9.9.9"/' "$work/other/trireme/version.hpp"
grep -q '"other: "' "$work/other/trireme/core/text.hpp"
cat >"$work/library.cpp" <<'END'
#include <trireme/core/error.hpp>
#include <trireme/core/text.hpp>
#include <trireme/version.hpp>
#include <string>
__attribute__((visibility("default"))) std::string from_library(bool fails) {
  if (fails) throw trireme::config_error(trireme::text("refused by ", 9));
  return trireme::text("version ", TRIREME_VERSION);
}
END
cat >"$work/program.cpp" <<'END'
#include <cstdio>
#include <exception>
#include <string>
#include <trireme/core/error.hpp>
#include <trireme/core/text.hpp>
#include <trireme/version.hpp>
std::string from_library(bool fails);
int main() {
  std::string const own = trireme::text("version ", TRIREME_VERSION), other = from_library(false);
  std::printf("%s; %s\n", own.c_str(), other.c_str());
  if (own != "version " TRIREME_VERSION || other != "other: version 9.9.9") return 1;
  try {
    from_library(true);
  } catch (std::exception const& error) {
    return std::string(error.what()).find("other: refused by 9") == std::string::npos ? 2 : 0;
  }
  return 3;
}
END
compiler=${CXX:-g++}
"$compiler" -std=c++20 -O0 -fvisibility=hidden -fPIC -shared -I"$work/other" "$work/library.cpp" -o "$work/libother.so"
"$compiler" -std=c++20 -O0 -rdynamic -I"$root/include" "$work/program.cpp" "$work/libother.so" -Wl,-rpath,"$work" \
  -o "$work/program"
"$work/program"
