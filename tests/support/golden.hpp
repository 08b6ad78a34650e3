#pragma once

#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "trireme/formats/safetensors.hpp"

/// The folder tests/, as ctest says.
inline std::string tests_folder() {
  auto const* const folder = std::getenv("TRIREME_TEST_DATA");
  return folder == nullptr ? "tests" : folder;
}

/// What another implementation has computed, in the files of tests/golden.
namespace golden {

inline std::string path(std::string const& name) { return tests_folder() + "/golden/" + name; }

inline trireme::formats::safetensors::reader open(std::string const& name) {
  return trireme::formats::safetensors::reader(path(name));
}

template <class T>
std::vector<T> read(trireme::formats::safetensors::reader const& file, std::string const& name) {
  std::vector<T> values(static_cast<std::size_t>(file.at(name).extents.size()));
  file.read(name, 0, std::span(values));
  return values;
}

}  // namespace golden
