// Trireme 0.1.0: trireme/data/file_list.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 22dc6233a829e7d1d2257cf5b17501fb90923b80b2a6cd18a40b97e5a2c0fccc
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/data/file_list.hpp
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {

/// Files of a source: one name, one pattern (`"data/train_*.bin"`), one directory, or a list of them.
///
/// The names that a pattern matches are sorted by their bytes, whatever the locale, so that every rank reads the same
/// order; "shard_10" comes before "shard_2". Names in a list keep the order of the list.
struct file_list {
  std::vector<std::string> patterns;

  file_list() = default;
  file_list(char const* pattern) : patterns{pattern} {}                    // NOLINT(google-explicit-constructor)
  file_list(std::string pattern) : patterns{std::move(pattern)} {}         // NOLINT(google-explicit-constructor)
  file_list(std::vector<std::string> list) : patterns(std::move(list)) {}  // NOLINT(google-explicit-constructor)
  file_list(std::initializer_list<std::string> list) : patterns(list) {}
  friend bool operator==(file_list const&, file_list const&) = default;

  /// The names of the files. A name that exists is used as it is, even if it contains characters of patterns.
  ///
  /// Errors   config_error if there is no pattern, if one of them matches no file, or if a file is named twice;
  ///          io_error if a directory cannot be read.
  /// @param who      the public name with which messages begin.
  /// @param endings  of the files that are used of a directory: {".bin", ".safetensors"}.
  [[nodiscard]] std::vector<std::string> names(std::string const& who,
                                               std::initializer_list<std::string_view> endings) const {
    if (patterns.empty()) throw config_error(text(who, ": .files names no file; give a name or a pattern"));
    std::vector<std::string> out;
    std::set<std::string> known;
    for (auto const& pattern : patterns) {
      for (auto& name : matches(who, pattern, endings)) {
        if (!known.insert(name).second) {
          throw config_error(text(who, ": .files names ", name, " twice; name each file once"));
        }
        out.push_back(std::move(name));
      }
    }
    return out;
  }

 private:
  static std::vector<std::string> matches(std::string const& who, std::string const& pattern,
                                          std::initializer_list<std::string_view> endings) {
    struct ::stat about {};
    bool const exists = ::stat(pattern.c_str(), &about) == 0;
    bool const directory = exists && S_ISDIR(about.st_mode);
    if (exists && !directory) return {pattern};
    std::vector<std::string> out;
    if (directory) {
      for (auto const ending : endings) {
        for (auto& name : glob_of(who, text(escaped(pattern), "/*", ending))) out.push_back(std::move(name));
      }
    } else {
      out = glob_of(who, pattern);
    }
    if (out.empty()) {
      std::string kinds;
      for (auto const ending : endings) kinds += text(kinds.empty() ? "" : ", ", ending);
      throw config_error(directory ? text(who, ": the directory ", pattern, " has no file that ends in ", kinds)
                                   : text(who, ": no file matches \"", pattern, "\""));
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  static std::string escaped(std::string const& name) {
    std::string out;
    for (auto const letter : name) {
      if (letter == '*' || letter == '?' || letter == '[' || letter == '\\') out += '\\';
      out += letter;
    }
    return out;
  }
  static std::vector<std::string> glob_of(std::string const& who, std::string const& pattern) {
    ::glob_t found{};
    auto const result = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
    std::vector<std::string> out;
    for (std::size_t i = 0; i < found.gl_pathc; ++i) out.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (result != 0 && result != GLOB_NOMATCH) {
      throw io_error(pattern, text(who, ": a directory of this pattern cannot be read"));
    }
    return out;
  }
};

/// "\"data/train_*.bin\"", or "{\"a.bin\", \"b.bin\"}"
[[nodiscard]] inline std::string to_string(file_list const& files) {
  if (files.patterns.size() == 1) return text("\"", files.patterns.front(), "\"");
  std::string out;
  for (auto const& each : files.patterns) out += text(out.empty() ? "" : ", ", "\"", each, "\"");
  return text("{", out, "}");
}

}  // namespace trireme::data
