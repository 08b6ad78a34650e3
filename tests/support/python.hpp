#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "../catch.hpp"
#include "missing.hpp"

/// Runs a script of tests/python on a folder; false if it cannot run here (77 is its word for a missing package).
inline bool python_ran(std::string const& script, std::string const& folder) {
  char const* python = std::getenv("TRIREME_PYTHON");
  char const* const tests = std::getenv("TRIREME_TEST_DATA");  // set by ctest: the path of tests/
  if (python == nullptr || *python == '\0' || tests == nullptr) {
    missing("TRIREME_PYTHON or TRIREME_TEST_DATA is not set: " + script + " was left out");
    return false;
  }
  auto const path = std::filesystem::path(tests) / "python" / script;
  auto const status = std::system(("'" + std::string(python) + "' '" + path.string() + "' '" + folder + "'").c_str());
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    missing("a package is missing: " + script + " was left out");
    return false;
  }
  REQUIRE(WEXITSTATUS(status) == 0);
  return true;
}
