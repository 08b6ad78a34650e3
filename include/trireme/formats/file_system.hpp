#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "trireme/core/error.hpp"

namespace trireme::formats {

/// The file operations that this room uses, each as in POSIX: -1 and errno on failure. A path is relative to the
/// directory `at`: an open descriptor, or AT_FDCWD.
///
/// Why a class: tests derive one that fails or stops at operation n, for every n. It must outlive its users.
///
/// Threads  stateless; any number of callers.
class file_system {
 public:
  file_system() = default;
  file_system(file_system const&) = delete;
  file_system& operator=(file_system const&) = delete;
  virtual ~file_system() = default;

  virtual int open(int at, char const* path, int flags, ::mode_t mode) { return ::openat(at, path, flags, mode); }
  virtual int close(int descriptor) { return ::close(descriptor); }
  virtual int status(int descriptor, struct ::stat& out) { return ::fstat(descriptor, &out); }
  virtual ::ssize_t read(int descriptor, void* to, std::size_t bytes, ::off_t at) {
    return ::pread(descriptor, to, bytes, at);
  }
  virtual ::ssize_t write(int descriptor, void const* from, std::size_t bytes) {
    return ::write(descriptor, from, bytes);
  }
  virtual int truncate(int descriptor, ::off_t bytes) { return ::ftruncate(descriptor, bytes); }
  virtual int synchronise(int descriptor) { return ::fsync(descriptor); }
  virtual int rename(int at, char const* from, char const* to) { return ::renameat(at, from, at, to); }
  /// The same from one open directory into another.
  virtual int move(int from, char const* name, int to, char const* there) { return ::renameat(from, name, to, there); }
  /// Exchanges two names in one step. Many file systems cannot (NFS, FUSE, ZFS).
  virtual int exchange(int at, char const* one, char const* other) {
#ifdef SYS_renameat2  // by its number: musl had no function for it
    constexpr unsigned change_places = 2;
    return static_cast<int>(::syscall(SYS_renameat2, at, one, at, other, change_places));
#else
    static_cast<void>(at), static_cast<void>(one), static_cast<void>(other);
    errno = ENOSYS;
    return -1;
#endif
  }
  virtual int unlink(int at, char const* path) { return ::unlinkat(at, path, 0); }
  virtual int make_directory(int at, char const* path, ::mode_t mode) { return ::mkdirat(at, path, mode); }
  virtual int remove_directory(int at, char const* path) { return ::unlinkat(at, path, AT_REMOVEDIR); }
  /// Adds the names in an open directory, in any order, including "." and "..".
  virtual int list(int descriptor, std::vector<std::string>& names) {
    auto const own =
        ::openat(descriptor, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // a new descriptor has its own position
    if (own < 0) return -1;
    auto* const open = ::fdopendir(own);
    if (open == nullptr) {
      ::close(own);
      return -1;
    }
    errno = 0;
    while (auto const* const entry = ::readdir(open)) names.emplace_back(entry->d_name);
    auto const problem = errno;
    ::closedir(open);
    errno = problem;
    return problem == 0 ? 0 : -1;
  }
};

/// The operations of the operating system.
[[nodiscard]] inline file_system& real_files() noexcept {
  static file_system files;
  return files;
}

namespace detail {

/// "cannot write: no space left on device"
[[nodiscard]] inline io_error io_failure(std::string const& path, std::string_view action, int number) {
  auto reason = std::generic_category().message(number);
  if (!reason.empty() && reason[0] >= 'A' && reason[0] <= 'Z' && reason[1] >= 'a') reason[0] += 'a' - 'A';
  return {path, text("cannot ", action, ": ", reason), number};
}

/// Repeats a POSIX operation while signals interrupt it, and throws if it failed.
template <class Call>
auto checked(std::string const& path, std::string_view action, Call&& call) {
  for (;;) {
    auto const result = call();
    if (result >= 0) return result;
    if (errno != EINTR) throw io_failure(path, action, errno);
  }
}

}  // namespace detail

/// The directory part of a path: "a/b" -> "a", "b" -> ".", "/b" -> "/".
[[nodiscard]] inline std::string directory_of(std::string_view path) {
  auto const slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(path.substr(0, slash == 0 ? 1 : slash));
}
/// The last component of a path: "a/b" -> "b".
[[nodiscard]] inline std::string name_of(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

/// Renames a file or directory; a file with the new name is replaced.
inline void rename(std::string const& from, std::string const& to, file_system& files = real_files()) {
  detail::checked(from, text("rename to ", to), [&] { return files.rename(AT_FDCWD, from.c_str(), to.c_str()); });
}

}  // namespace trireme::formats
