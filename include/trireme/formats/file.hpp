#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"

namespace trireme::formats {

/// The file operations that this room uses, each as in POSIX: -1 and errno on failure.
///
/// Why a class: a test derives one that fails or stops at operation n, for every n. It has to outlive what uses it.
///
/// Threads  stateless; any number of callers.
class file_system {
 public:
  file_system() = default;
  file_system(file_system const&) = delete;
  file_system& operator=(file_system const&) = delete;
  virtual ~file_system() = default;

  virtual int open(char const* path, int flags, ::mode_t mode) { return ::open(path, flags, mode); }
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
  virtual int rename(char const* from, char const* to) { return ::rename(from, to); }
  virtual int unlink(char const* path) { return ::unlink(path); }
  virtual int make_directory(char const* path, ::mode_t mode) { return ::mkdir(path, mode); }
  virtual int remove_directory(char const* path) { return ::rmdir(path); }
};

/// The real one.
[[nodiscard]] inline file_system& real_files() noexcept {
  static file_system files;
  return files;
}

namespace detail {

/// "cannot write: no space left on device"
[[nodiscard]] inline io_error io_failure(std::string const& path, std::string_view action, int number) {
  auto reason = std::generic_category().message(number);
  if (!reason.empty() && reason[0] >= 'A' && reason[0] <= 'Z' && reason[1] >= 'a') reason[0] += 'a' - 'A';
  return {path, text("cannot ", action, ": ", reason)};
}

/// Calls a POSIX operation until it is not interrupted by a signal, and throws if it failed.
template <class Call>
auto checked(std::string const& path, std::string_view action, Call&& call) {
  for (;;) {
    auto const result = call();
    if (result >= 0) return result;
    if (errno != EINTR) throw io_failure(path, action, errno);
  }
}

}  // namespace detail

/// The directory that a path lies in: "a/b" -> "a", "b" -> ".", "/b" -> "/".
[[nodiscard]] inline std::string directory_of(std::string_view path) {
  auto const slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(path.substr(0, slash == 0 ? 1 : slash));
}

/// An open file.
///
/// Threads  one owner; read() may be called from several threads at once.
/// Errors   everything throws io_error(path, reason), "no space left on device" and all the others in words; the
///          destructor closes and says nothing, so whoever wrote calls synchronise() or close().
class file {
 public:
  enum class access {
    read,    ///< an existing file
    create,  ///< a new or emptied file, written from its beginning
    extend,  ///< a new or existing file, read and written at its end
  };

  file(std::string path, access how, file_system& files = real_files()) : path_(std::move(path)), files_(&files) {
    int const flags = how == access::read     ? O_RDONLY
                      : how == access::create ? O_RDWR | O_CREAT | O_TRUNC
                                              : O_RDWR | O_CREAT | O_APPEND;
    descriptor_ = detail::checked(path_, how == access::read ? "open" : "open for writing",
                                  [&] { return files_->open(path_.c_str(), flags | O_CLOEXEC, 0666); });
  }
  file(file&& other) noexcept
      : path_(std::move(other.path_)), files_(other.files_), descriptor_(std::exchange(other.descriptor_, -1)) {}
  file& operator=(file&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(files_, other.files_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~file() {
    if (descriptor_ >= 0) files_->close(descriptor_);
  }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] file_system& files() const noexcept { return *files_; }

  /// The length in bytes. A directory, a pipe or a device has none: throws.
  [[nodiscard]] std::uint64_t size() const {
    struct ::stat status {};
    detail::checked(path_, "ask for the size", [&] { return files_->status(descriptor_, status); });
    if (!S_ISREG(status.st_mode)) throw io_error(path_, "is not a regular file");
    return static_cast<std::uint64_t>(status.st_size);
  }

  /// Fills `to` with the bytes from `offset` on. Throws if the file ends before that.
  void read(std::uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      auto const part = std::min(to.size(), most_at_once);
      auto const got = static_cast<std::size_t>(detail::checked(
          path_, "read", [&] { return files_->read(descriptor_, to.data(), part, static_cast<::off_t>(offset)); }));
      if (got == 0) throw io_error(path_, text("cannot read: the file ends at byte ", offset));
      offset += got;
      to = to.subspan(got);
    }
  }

  /// Writes all of `from` behind what was written before.
  void write(std::span<std::byte const> from) {
    while (!from.empty()) {
      auto const part = std::min(from.size(), most_at_once);
      auto const put = static_cast<std::size_t>(
          detail::checked(path_, "write", [&] { return files_->write(descriptor_, from.data(), part); }));
      if (put == 0) throw io_error(path_, "cannot write: the device takes nothing more");
      from = from.subspan(put);
    }
  }
  void write(std::string_view characters) { write(std::as_bytes(std::span(characters))); }

  /// Cuts the file to `bytes`.
  void truncate(std::uint64_t bytes) {
    detail::checked(path_, "truncate", [&] { return files_->truncate(descriptor_, static_cast<::off_t>(bytes)); });
  }
  /// Returns when the content has reached the device.
  void synchronise() {
    detail::checked(path_, "synchronise", [&] { return files_->synchronise(descriptor_); });
  }
  void close() {
    // Not repeated after a signal: the descriptor is gone by then, and may belong to somebody else.
    auto const descriptor = std::exchange(descriptor_, -1);
    if (descriptor >= 0 && files_->close(descriptor) < 0 && errno != EINTR) {
      throw detail::io_failure(path_, "close", errno);
    }
  }

 private:
  static constexpr std::size_t most_at_once = std::size_t{1} << 30;  // the kernel takes less than 2 GiB a call

  std::string path_;
  file_system* files_;
  int descriptor_ = -1;
};

/// The whole content of a file. Throws io_error if it has more than `most` bytes, before it takes memory for them.
[[nodiscard]] inline std::vector<std::byte> read_file(std::string const& path,
                                                      std::uint64_t most = std::uint64_t{1} << 30,
                                                      file_system& files = real_files()) {
  file const from(path, file::access::read, files);
  auto const size = from.size();
  if (size > most) throw io_error(path, text("has ", size, " bytes, more than the ", most, " expected"));
  std::vector<std::byte> out(static_cast<std::size_t>(size));
  from.read(0, out);
  return out;
}

/// The same as text.
[[nodiscard]] inline std::string read_text(std::string const& path, std::uint64_t most = std::uint64_t{1} << 30,
                                           file_system& files = real_files()) {
  auto const bytes = read_file(path, most, files);
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

/// Returns when the names in a directory (files made, renamed, removed) have reached the device.
inline void synchronise_directory(std::string const& path, file_system& files = real_files()) {
  auto const descriptor = detail::checked(
      path, "open the directory", [&] { return files.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  auto const failed = files.synchronise(descriptor) < 0 ? errno : 0;
  files.close(descriptor);
  // Some file systems have nothing to synchronise for a directory, and say so.
  if (failed != 0 && failed != EINVAL) throw detail::io_failure(path, "synchronise the directory", failed);
}

/// Renames a file or directory; what had the new name is replaced.
inline void rename(std::string const& from, std::string const& to, file_system& files = real_files()) {
  detail::checked(from, text("rename to ", to), [&] { return files.rename(from.c_str(), to.c_str()); });
}

/// A file that appears under its name only when it is complete, or not at all.
///
/// Written under a temporary name in the same directory; publish() brings the content to the device, renames, and
/// brings the new name to the device, in this order: after a crash or power loss either the old or the new file is
/// there, whole. Destroyed before publish(), it removes the temporary.
///
/// Threads  one owner. Two processes must not write the same path at once.
class atomic_file {
 public:
  explicit atomic_file(std::string path, file_system& files = real_files())
      : path_(std::move(path)), content_(path_ + ".partial", file::access::create, files) {}
  atomic_file(atomic_file&& other) noexcept
      : path_(std::move(other.path_)),
        content_(std::move(other.content_)),
        pending_(std::exchange(other.pending_, false)) {}
  ~atomic_file() {
    if (!pending_) return;
    // Nobody is left to tell if this fails; a later attempt empties the same temporary.
    content_.files().unlink(content_.path().c_str());
  }

  void write(std::span<std::byte const> bytes) { content_.write(bytes); }

  /// Makes the file visible. After a failure before the rename the old file is untouched.
  void publish() {
    content_.synchronise();
    content_.close();
    rename(content_.path(), path_, content_.files());
    pending_ = false;
    synchronise_directory(directory_of(path_), content_.files());
  }

 private:
  std::string path_;
  file content_;
  bool pending_ = true;
};

/// Replaces the content of a file, as atomic_file does.
inline void atomic_write(std::string const& path, std::span<std::byte const> bytes, file_system& files = real_files()) {
  atomic_file to(path, files);
  to.write(bytes);
  to.publish();
}
inline void atomic_write(std::string const& path, std::string_view characters, file_system& files = real_files()) {
  atomic_write(path, std::as_bytes(std::span(characters)), files);
}

}  // namespace trireme::formats
