#pragma once

#include <stdlib.h>  // NOLINT: mkdtemp is POSIX, not in <cstdlib>

#include <filesystem>
#include <string>

/// A directory that is removed with everything in it at the end of a test.
class scratch {
 public:
  scratch() {
    auto pattern = (std::filesystem::temp_directory_path() / "trireme_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no scratch directory");
    path_ = pattern;
  }
  scratch(scratch const&) = delete;
  scratch& operator=(scratch const&) = delete;
  ~scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(std::string const& name) const { return path_ + "/" + name; }
  [[nodiscard]] std::string const& path() const { return path_; }
  /// The number of names in the directory.
  [[nodiscard]] int entries() const {
    int count = 0;
    for ([[maybe_unused]] auto const& each : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_;
};
