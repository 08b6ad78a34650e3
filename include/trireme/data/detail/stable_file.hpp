#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <system_error>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::data::detail {

/// An open file whose size must not change. `who` is the public name with which messages begin.
///
/// It is read, not mapped: if a mapped file is truncated, an access beyond its end kills the program with SIGBUS.
///
/// Threads  read() is const: any number of callers.
/// Errors   io_error if it cannot be opened, is not a regular file, is empty, or ends before what is read.
class stable_file {
 public:
  stable_file(std::string path, std::string const& who) : path_(std::move(path)), who_(who) {
    // O_NONBLOCK: open() then returns at once for a named pipe, which is refused below, and does not wait for a writer.
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) throw failure("cannot open the file: " + reason());
    struct stat about {};
    bool const known = ::fstat(descriptor_, &about) == 0;
    auto const why = !known                    ? "cannot examine the file: " + reason()
                     : S_ISDIR(about.st_mode)  ? "this is a directory, but a file is needed"
                     : !S_ISREG(about.st_mode) ? "this is not a regular file, so it cannot be read at any position"
                     : about.st_size == 0      ? "the file is empty"
                                               : std::string();
    if (!why.empty()) {
      ::close(descriptor_);
      throw failure(why);
    }
    size_ = about.st_size;
  }
  stable_file(stable_file const&) = delete;
  stable_file& operator=(stable_file const&) = delete;
  ~stable_file() { ::close(descriptor_); }

  /// The size when the file was opened.
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

  /// Fills `to` with the bytes from `at` on.
  void read(std::int64_t at, std::span<unsigned char> to) const {
    while (!to.empty()) {
      auto const got = read_some(at, to);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw failure("cannot read the file: " + reason());
      if (got == 0) {
        throw failure(text("the file had ", how_many(size_, "byte"), " when it was opened, but byte ", at,
                           " is gone; restore the file, and do not truncate a file that is in use"));
      }
      at += got;
      to = to.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  /// pread() without being a point where the thread can be cancelled, which costs a small read some percent.
  [[nodiscard]] ::ssize_t read_some(std::int64_t at, std::span<unsigned char> to) const {
#if defined(SYS_pread64) && defined(__LP64__)
    return ::syscall(SYS_pread64, descriptor_, to.data(), to.size(), at);
#else
    return ::pread(descriptor_, to.data(), to.size(), at);
#endif
  }
  // strerror is not thread-safe; the standard library's message() is.
  static std::string reason() { return std::generic_category().message(errno); }
  [[nodiscard]] io_error failure(std::string const& what) const { return {path_, text(who_, ": ", what)}; }

  std::string path_;
  std::string who_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace trireme::data::detail
