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

/// A directory that is held open. Names are looked up in it, and a symbolic link that has one of them is not followed.
///
/// Why: whoever writes, renames and removes through it stays in this directory and in those below() it, whatever links
/// lie there, and even if the directory itself is moved meanwhile.
///
/// Threads  any number of callers; copies share one descriptor. The file_system must outlive them all.
/// Errors   io_error that names the path; config_error for a name that is none: "", ".", "..", or one with a slash.
class directory {
 public:
  /// Whether the last name of a path may be a symbolic link. Those before it are always followed.
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

  /// Makes a directory in it, unless something has that name already, and opens it.
  [[nodiscard]] directory make(std::string const& name) const;
  /// Gives a file, directory or link another name; a file or an empty directory that had it is replaced.
  void rename(std::string const& from, std::string const& to) const;
  /// A file of that name becomes one of another directory; a file that had the name there is replaced.
  void move(std::string const& name, directory const& to) const;
  /// Two names change places in one step. @returns false if this file system has no such operation; then nothing has
  /// changed.
  [[nodiscard]] bool exchange(std::string const& one, std::string const& other) const;
  /// Removes a directory and the files in it, or a file, or a link (never what it leads to). Directories in the
  /// directory, and what cannot be removed, stay. @returns whether nothing has the name any more.
  bool remove(std::string const& name) const;
  /// Returns when the names in it (files made, renamed, removed) have reached the device.
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

/// Makes a directory and its parents, where they are missing.
void make_directories(std::string const& path, file_system& files = real_files());

}  // namespace trireme::formats

#ifndef TRIREME_COMPILED
#include "trireme/formats/directory.ipp"
#endif
