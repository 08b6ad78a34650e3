#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

/// Says what was left out of a test that else has run: the test passes, and scripts/test lists the sentence.
inline void missing_part(std::string const& what) { std::printf("skipped: in part: %s\n", what.c_str()); }

/// Says that a part of this program's tests could not run: if all others pass, the program ends with 77, so that ctest
/// shows it as skipped, and scripts/test says why.
inline void missing(std::string const& what) {
  std::printf("skipped: %s\n", what.c_str());
  static bool const registered = ::on_exit(
                                     [](int status, void*) {
                                       std::fflush(nullptr);
                                       if (status == 0) std::_Exit(77);
                                     },
                                     nullptr) == 0;
  static_cast<void>(registered);
}
