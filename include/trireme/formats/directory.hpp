#pragma once

#include <fcntl.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/core/error.hpp"
#include "trireme/formats/file_system.hpp"

namespace trireme::formats {

/// An open directory. Names are looked up in it; a name that is a symbolic link is not followed.
///
/// Why: writing, renaming and removing through it stay in this directory and in those opened with below(), whatever
/// links are in them, and even if the directory itself is moved in the meantime.
///
/// Threads  any number of callers; copies share one descriptor. The file_system must outlive them all.
/// Errors   io_error that names the path; config_error for an invalid name: "", ".", "..", or one with a slash.
class directory {
 public:
  /// Whether the last component of a path may be a symbolic link. Links before it are always followed.
  enum class links { followed, refused };

  /// Opens a directory.
  explicit directory(std::string path, file_system& files = real_files(), links last = links::followed)
      : directory(AT_FDCWD, path.c_str(), path, files, last == links::refused ? O_NOFOLLOW : 0) {}

  /// Opens the directory of that name in this one.
  [[nodiscard]] directory below(std::string const& name) const;

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(std::string const& name) const;
  [[nodiscard]] file_system& files() const noexcept { return open_->files; }
  [[nodiscard]] int descriptor() const noexcept { return open_->descriptor; }

  /// The names in it, sorted, without "." and "..".
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool has(std::string const& name) const;

  /// Creates a directory in it, unless the name exists already, and opens it.
  [[nodiscard]] directory make(std::string const& name) const;
  /// Renames a file, directory or link; a file or an empty directory with the new name is replaced.
  void rename(std::string const& from, std::string const& to) const;
  /// Moves a file into another directory; a file with the same name there is replaced.
  void move(std::string const& name, directory const& to) const;
  /// Exchanges two names in one step. @returns false if this file system has no such operation; then nothing has
  /// changed.
  [[nodiscard]] bool exchange(std::string const& one, std::string const& other) const;
  /// Removes a directory and the files in it, or a file, or a link (never its target). Subdirectories, and what cannot
  /// be removed, stay. @returns whether the name no longer exists.
  bool remove(std::string const& name) const;
  /// Returns when the names in it (files created, renamed, removed) have been written to the device.
  void synchronise() const;

 private:
  static constexpr int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

  struct handle {
    file_system& files;
    int descriptor = -1;
    handle(file_system& through, int opened) : files(through), descriptor(opened) {}
    handle(handle const&) = delete;
    handle& operator=(handle const&) = delete;
    ~handle() { files.close(descriptor); }
  };

  directory(int at, char const* name, std::string path, file_system& files, int follow);
  void expect_name(std::string_view name) const;

  std::string path_;
  std::shared_ptr<handle const> open_;
};

/// Creates a directory and its parents, if they do not exist.
void make_directories(std::string const& path, file_system& files = real_files());

}  // namespace trireme::formats

#ifndef TRIREME_COMPILED
#include "trireme/formats/directory.ipp"
#endif
