#pragma once

#include <algorithm>
#include <cerrno>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/directory.hpp"

namespace trireme::formats {

TRIREME_BODY directory directory::below(std::string const& name) const {
  expect_name(name);
  return {descriptor(), name.c_str(), path_of(name), files(), O_NOFOLLOW};
}

TRIREME_BODY std::string directory::path_of(std::string const& name) const {
  if (path_ == ".") return name;
  return path_ + (path_.ends_with('/') ? "" : "/") + name;
}

TRIREME_BODY std::vector<std::string> directory::names() const {
  std::vector<std::string> all;
  detail::checked(path_, "list the directory", [&] { return files().list(descriptor(), all); });
  std::erase_if(all, [](std::string const& name) { return name == "." || name == ".."; });
  std::sort(all.begin(), all.end());
  return all;
}

TRIREME_BODY bool directory::has(std::string const& name) const {
  auto const all = names();
  return std::binary_search(all.begin(), all.end(), name);
}
TRIREME_BODY directory directory::make(std::string const& name) const {
  expect_name(name);
  if (files().make_directory(descriptor(), name.c_str(), 0777) != 0 && errno != EEXIST) {
    throw detail::io_failure(path_of(name), "make the directory", errno);
  }
  return below(name);
}

TRIREME_BODY void directory::rename(std::string const& from, std::string const& to) const {
  expect_name(from), expect_name(to);
  detail::checked(path_of(from), text("rename to ", path_of(to)),
                  [&] { return files().rename(descriptor(), from.c_str(), to.c_str()); });
}

TRIREME_BODY void directory::move(std::string const& name, directory const& to) const {
  expect_name(name);
  detail::checked(path_of(name), text("move to ", to.path_of(name)),
                  [&] { return files().move(descriptor(), name.c_str(), to.descriptor(), name.c_str()); });
}

TRIREME_BODY bool directory::exchange(std::string const& one, std::string const& other) const {
  expect_name(one), expect_name(other);
  if (files().exchange(descriptor(), one.c_str(), other.c_str()) == 0) return true;
  // The errors by which file systems, overlays, old kernels and system call filters report that they lack the
  // operation.
  auto const why = errno;
  if (why == EINVAL || why == ENOSYS || why == EOPNOTSUPP || why == EXDEV || why == EPERM) return false;
  throw detail::io_failure(path_of(one), text("exchange names with ", path_of(other)), why);
}

TRIREME_BODY bool directory::remove(std::string const& name) const {
  expect_name(name);
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

TRIREME_BODY void directory::synchronise() const {
  auto const failed = files().synchronise(descriptor()) < 0 ? errno : 0;
  // Some file systems have nothing to synchronise for a directory, and return an error.
  bool const nothing = failed == EINVAL || failed == ENOSYS || failed == EOPNOTSUPP || failed == EBADF;
  if (failed != 0 && !nothing) throw detail::io_failure(path_, "synchronise the directory", failed);
}

TRIREME_BODY directory::directory(int at, char const* name, std::string path, file_system& files, int follow)
    : path_(std::move(path)) {
  int opened = -1;
  do opened = files.open(at, name, flags | follow, 0);
  while (opened < 0 && errno == EINTR);
  if (opened < 0 && follow != 0 && (errno == ENOTDIR || errno == ELOOP)) {
    throw io_error(path_, "is not a directory (a symbolic link to one is not followed here)", errno);
  }
  if (opened < 0) throw detail::io_failure(path_, "open the directory", errno);
  open_ = std::make_shared<handle const>(files, opened);
}

TRIREME_BODY void directory::expect_name(std::string_view name) const {
  if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos) {
    throw config_error(text("trireme::formats::directory: \"", name, "\" is not a name in ", path_));
  }
}

TRIREME_BODY void make_directories(std::string const& path, file_system& files) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    auto const prefix = path.substr(0, slash);
    if (files.make_directory(AT_FDCWD, prefix.c_str(), 0777) != 0 && errno != EEXIST) {
      throw detail::io_failure(prefix, "make the directory", errno);
    }
    if (slash == std::string::npos) return;
  }
}

}  // namespace trireme::formats
