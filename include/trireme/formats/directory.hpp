#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  [[nodiscard]] directory below(std::string const& name) const {
    require(name);
    return {descriptor(), name.c_str(), path_of(name), files(), O_NOFOLLOW};
  }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(std::string const& name) const {
    if (path_ == ".") return name;
    return path_ + (path_.ends_with('/') ? "" : "/") + name;
  }
  [[nodiscard]] file_system& files() const noexcept { return open_->files; }
  [[nodiscard]] int descriptor() const noexcept { return open_->descriptor; }

  /// The names in it, sorted, without "." and "..".
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    detail::checked(path_, "list the directory", [&] { return files().list(descriptor(), all); });
    std::erase_if(all, [](std::string const& name) { return name == "." || name == ".."; });
    std::sort(all.begin(), all.end());
    return all;
  }
  [[nodiscard]] bool has(std::string const& name) const { return std::ranges::binary_search(names(), name); }

  /// Makes a directory in it, unless something has that name already, and opens it.
  [[nodiscard]] directory make(std::string const& name) const {
    require(name);
    if (files().make_directory(descriptor(), name.c_str(), 0777) != 0 && errno != EEXIST) {
      throw detail::io_failure(path_of(name), "make the directory", errno);
    }
    return below(name);
  }
  /// Gives a file, directory or link another name; a file or an empty directory that had it is replaced.
  void rename(std::string const& from, std::string const& to) const {
    require(from), require(to);
    detail::checked(path_of(from), text("rename to ", path_of(to)),
                    [&] { return files().rename(descriptor(), from.c_str(), to.c_str()); });
  }
  /// Two names change places in one step.
  void exchange(std::string const& one, std::string const& other) const {
    require(one), require(other);
    detail::checked(path_of(one), text("change places with ", path_of(other)),
                    [&] { return files().exchange(descriptor(), one.c_str(), other.c_str()); });
  }
  /// Removes a directory and the files in it, or a file, or a link (never what it leads to). Directories in the
  /// directory, and what cannot be removed, stay. @returns whether nothing has the name any more.
  bool remove(std::string const& name) const {
    require(name);
    auto const inner = files().open(descriptor(), name.c_str(), flags | O_NOFOLLOW, 0);
    if (inner < 0) {
      if (errno == ENOENT) return true;
      return (errno == ENOTDIR || errno == ELOOP) && files().unlink(descriptor(), name.c_str()) == 0;
    }
    std::vector<std::string> all;
    files().list(inner, all);
    for (auto const& each : all) {
      if (each != "." && each != "..") files().unlink(inner, each.c_str());
    }
    files().close(inner);
    return files().remove_directory(descriptor(), name.c_str()) == 0;
  }
  /// Returns when the names in it (files made, renamed, removed) have reached the device.
  void synchronise() const {
    auto const failed = files().synchronise(descriptor()) < 0 ? errno : 0;
    // Some file systems have nothing to synchronise for a directory, and say so.
    if (failed != 0 && failed != EINVAL) throw detail::io_failure(path_, "synchronise the directory", failed);
  }

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

  directory(int at, char const* name, std::string path, file_system& files, int follow) : path_(std::move(path)) {
    int opened = -1;
    do opened = files.open(at, name, flags | follow, 0);
    while (opened < 0 && errno == EINTR);
    if (opened < 0 && follow != 0 && (errno == ENOTDIR || errno == ELOOP)) {
      throw io_error(path_, "is not a directory (a symbolic link to one is not followed here)", errno);
    }
    if (opened < 0) throw detail::io_failure(path_, "open the directory", errno);
    open_ = std::make_shared<handle const>(files, opened);
  }
  void require(std::string_view name) const {
    if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos) {
      throw config_error(text("trireme::formats::directory: \"", name, "\" is not a name in ", path_));
    }
  }

  std::string path_;
  std::shared_ptr<handle const> open_;
};

/// Makes a directory and its parents, where they are missing.
inline void make_directories(std::string const& path, file_system& files = real_files()) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    auto const part = path.substr(0, slash);
    if (files.make_directory(AT_FDCWD, part.c_str(), 0777) != 0 && errno != EEXIST) {
      throw detail::io_failure(part, "make the directory", errno);
    }
    if (slash == std::string::npos) return;
  }
}

}  // namespace trireme::formats
