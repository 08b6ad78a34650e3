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

#include "trireme/core/compiled.hpp"
#include "trireme/core/error.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file_system.hpp"

namespace trireme::formats {

/// An open file.
///
/// Threads  one owner; read() may be called from several threads at once.
/// Errors   all functions throw io_error(path, reason), with the system's reason in words. The destructor closes the
///          file and reports no error, so call synchronise() or close() after writing.
class file {
 public:
  enum class access {
    read,    ///< an existing file
    create,  ///< a new file, written from its beginning; an existing file (or link) of that name is removed
    extend,  ///< a new or existing file, read and written at its end
  };

  file(std::string path, access how, file_system& files = real_files()) : path_(std::move(path)), files_(&files) {
    open(AT_FDCWD, path_.c_str(), how, 0);
  }
  /// A file in a directory. If the name is a symbolic link, it is not followed.
  file(directory const& in, std::string const& name, access how);
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

  /// The length in bytes. Throws for a directory, a pipe or a device, which have none.
  [[nodiscard]] std::uint64_t size() const;

  /// Fills `to` with the bytes from `offset` on. Throws if the file ends before that.
  void read(std::uint64_t offset, std::span<std::byte> to) const;

  /// Appends all of `from` to what was written before.
  void write(std::span<std::byte const> from);
  void write(std::string_view characters) { write(std::as_bytes(std::span(characters))); }

  /// Truncates the file to `bytes`.
  void truncate(std::uint64_t bytes);
  /// Returns when the content has been written to the device.
  void synchronise();
  void close();

 private:
  static constexpr std::size_t most_at_once = std::size_t{1} << 30;  // the kernel writes less than 2 GiB per call

  void open(int at, char const* name, access how, int follow);

  std::string path_;
  file_system* files_;
  int descriptor_ = -1;
};

inline constexpr std::uint64_t most_bytes_at_once = std::uint64_t{1} << 30;

/// The whole content of a file. Throws io_error if it has more than `most` bytes, before allocating memory for them.
[[nodiscard]] std::vector<std::byte> read_file(std::string const& path, std::uint64_t most = most_bytes_at_once,
                                               file_system& files = real_files());
/// The same as text.
[[nodiscard]] std::string read_text(std::string const& path, std::uint64_t most = most_bytes_at_once,
                                    file_system& files = real_files());
[[nodiscard]] std::string read_text(directory const& in, std::string const& name,
                                    std::uint64_t most = most_bytes_at_once);

/// A file that appears under its name only when it is complete.
///
/// Written under a temporary name in the same directory. publish() writes the content to the device, renames, and
/// writes the new name to the device, in this order: after a crash or power loss either the old or the new file is
/// there, whole. If it is destroyed before publish(), it removes the temporary file. A symbolic link with the
/// temporary's name, or the file's, is replaced; its target does not change.
///
/// Threads  one owner. Two processes must not write the same path at once.
class atomic_file {
 public:
  explicit atomic_file(std::string const& path, file_system& files = real_files());
  atomic_file(directory in, std::string name);
  atomic_file(atomic_file&& other) noexcept
      : in_(other.in_),
        name_(std::move(other.name_)),
        content_(std::move(other.content_)),
        pending_(std::exchange(other.pending_, false)) {}
  ~atomic_file();

  void write(std::span<std::byte const> bytes) { content_.write(bytes); }

  /// Makes the file visible. After a failure before the rename the old file is untouched.
  void publish();
  /// The same in two parts, for files that are replaced together (file_set): complete() writes the content to the
  /// device and closes it, appear() renames it. The caller must then synchronise the directory.
  void complete();
  void appear();
  [[nodiscard]] directory const& in() const noexcept { return in_; }
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// The same without waiting for the device: after a crash of the machine neither file may be whole. For files that
  /// are written often and can be lost.
  void publish_unsynchronised();

 private:
  [[nodiscard]] std::string temporary() const { return name_ + ".partial"; }

  directory in_;
  std::string name_;
  file content_;
  bool pending_ = true;
};

/// Files that replace earlier ones together: all are written in full, under temporary names, before the first of them
/// is renamed, so that a full disk leaves every earlier file unchanged.
///
/// Between the first and the last rename a reader may see some new files beside some old ones, and a crash of the
/// machine may leave them so: file systems cannot rename several files at once.
///
/// Bytes    the disk holds the earlier files and the new ones at the same time.
/// Threads  one owner.
/// Errors   io_error. Destroyed before appear(), it removes the temporary files.
class file_set {
 public:
  /// Adds a file whose content is written, and flushes it to the device.
  void add(atomic_file content);
  /// Adds a file, unless a file with that name and content exists.
  void add(directory const& in, std::string const& name, std::string_view content);

  /// Renames the files, in the order in which they were added, and flushes the names to the device.
  void appear();

 private:
  std::vector<atomic_file> files_;
};

/// Replaces the content of a file, as atomic_file does.
void atomic_write(std::string const& path, std::span<std::byte const> bytes, file_system& files = real_files());
void atomic_write(std::string const& path, std::string_view characters, file_system& files = real_files());
void atomic_write(directory const& in, std::string const& name, std::string_view characters);

}  // namespace trireme::formats

#ifndef TRIREME_COMPILED
#include "trireme/formats/file.ipp"
#endif
