#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file_system.hpp"

namespace trireme::formats {

/// An open file.
///
/// Threads  one owner; read() may be called from several threads at once.
/// Errors   everything throws io_error(path, reason), "no space left on device" and all the others in words; the
///          destructor closes and says nothing, so whoever wrote calls synchronise() or close().
class file {
 public:
  enum class access {
    read,    ///< an existing file
    create,  ///< a new file, written from its beginning; what had the name is removed (of a link, the link)
    extend,  ///< a new or existing file, read and written at its end
  };

  file(std::string path, access how, file_system& files = real_files()) : path_(std::move(path)), files_(&files) {
    open(AT_FDCWD, path_.c_str(), how, 0);
  }
  /// A file in a directory. A symbolic link of that name is not followed.
  file(directory const& in, std::string const& name, access how) : path_(in.path_of(name)), files_(&in.files()) {
    if (name.find('/') != name.npos) throw config_error(text("trireme::formats::file: \"", name, "\" is no name"));
    open(in.descriptor(), name.c_str(), how, O_NOFOLLOW);
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

  void open(int at, char const* name, access how, int follow) {
    bool const reads = how == access::read;
    bool const creates = how == access::create;
    // Without waiting: a pipe would wait for somebody who writes.
    int const flags = (reads     ? O_RDONLY | O_NONBLOCK
                       : creates ? O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW
                                 : O_RDWR | O_CREAT | O_APPEND) |
                      O_CLOEXEC | follow;
    bool removed = false;
    while ((descriptor_ = files_->open(at, name, flags, 0666)) < 0) {
      if (errno == EEXIST && creates && !std::exchange(removed, true)) {
        detail::checked(path_, "remove what has this name", [&] { return files_->unlink(at, name); });
      } else if (errno == ELOOP && follow != 0) {
        throw io_error(path_, "is a symbolic link, which is not followed here", ELOOP);
      } else if (errno != EINTR) {
        throw detail::io_failure(path_, reads ? "open" : "open for writing", errno);
      }
    }
  }

  std::string path_;
  file_system* files_;
  int descriptor_ = -1;
};

namespace detail {

inline std::vector<std::byte> content_of(file const& from, std::uint64_t most) {
  auto const size = from.size();
  if (size > most) throw io_error(from.path(), text("has ", size, " bytes, more than the ", most, " expected"));
  std::vector<std::byte> out(static_cast<std::size_t>(size));
  from.read(0, out);
  return out;
}
inline std::string text_of(std::vector<std::byte> const& bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

}  // namespace detail

inline constexpr std::uint64_t most_bytes_at_once = std::uint64_t{1} << 30;

/// The whole content of a file. Throws io_error if it has more than `most` bytes, before it takes memory for them.
[[nodiscard]] inline std::vector<std::byte> read_file(std::string const& path, std::uint64_t most = most_bytes_at_once,
                                                      file_system& files = real_files()) {
  return detail::content_of(file(path, file::access::read, files), most);
}
/// The same as text.
[[nodiscard]] inline std::string read_text(std::string const& path, std::uint64_t most = most_bytes_at_once,
                                           file_system& files = real_files()) {
  return detail::text_of(read_file(path, most, files));
}
[[nodiscard]] inline std::string read_text(directory const& in, std::string const& name,
                                           std::uint64_t most = most_bytes_at_once) {
  return detail::text_of(detail::content_of(file(in, name, file::access::read), most));
}

/// A file that appears under its name only when it is complete, or not at all.
///
/// Written under a temporary name in the same directory; publish() brings the content to the device, renames, and
/// brings the new name to the device, in this order: after a crash or power loss either the old or the new file is
/// there, whole. Destroyed before publish(), it removes the temporary. A symbolic link that has the temporary's name,
/// or the file's, is replaced; what it leads to stays as it is.
///
/// Threads  one owner. Two processes must not write the same path at once.
class atomic_file {
 public:
  explicit atomic_file(std::string const& path, file_system& files = real_files())
      : atomic_file(directory(directory_of(path), files), name_of(path)) {}
  atomic_file(directory in, std::string name)
      : in_(std::move(in)), name_(std::move(name)), content_(in_, temporary(), file::access::create) {}
  atomic_file(atomic_file&& other) noexcept
      : in_(other.in_),
        name_(std::move(other.name_)),
        content_(std::move(other.content_)),
        pending_(std::exchange(other.pending_, false)) {}
  ~atomic_file() {
    if (!pending_) return;
    // Nobody is left to tell if this fails; a later attempt removes the same temporary.
    in_.files().unlink(in_.descriptor(), temporary().c_str());
  }

  void write(std::span<std::byte const> bytes) { content_.write(bytes); }

  /// Makes the file visible. After a failure before the rename the old file is untouched.
  void publish() {
    content_.synchronise();
    replace();
    in_.synchronise();
  }
  /// The same without waiting for the device: what a crash of the machine leaves may be neither of them. For files that
  /// are written often, and are worth less than that wait.
  void publish_unsynchronised() { replace(); }

 private:
  void replace() {
    content_.close();
    in_.rename(temporary(), name_);
    pending_ = false;
  }
  [[nodiscard]] std::string temporary() const { return name_ + ".partial"; }

  directory in_;
  std::string name_;
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
inline void atomic_write(directory const& in, std::string const& name, std::string_view characters) {
  atomic_file to(in, name);
  to.write(std::as_bytes(std::span(characters)));
  to.publish();
}

}  // namespace trireme::formats
