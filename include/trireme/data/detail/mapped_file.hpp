#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <system_error>

#include "trireme/core/error.hpp"

namespace trireme::data::detail {

/// The bytes of a file, read-only, in memory when they are touched. `who` is the public name that messages start with.
class mapped_file {
 public:
  mapped_file(std::string const& path, std::string const& who) {
    // O_NONBLOCK: a named pipe is then opened, and refused below, instead of waiting for a writer.
    int const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) throw io_error(path, text(who, ": cannot open the file: ", reason()));
    struct stat about {};
    bool const known = ::fstat(file, &about) == 0;
    auto const why = known ? std::string() : reason();
    if (known && S_ISREG(about.st_mode) && about.st_size > 0) {
      size_ = static_cast<std::size_t>(about.st_size);
      address_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    }
    auto const map_reason = address_ == MAP_FAILED ? reason() : std::string();
    ::close(file);
    if (!known) throw io_error(path, text(who, ": cannot examine the file: ", why));
    if (S_ISDIR(about.st_mode)) throw io_error(path, text(who, ": this is a directory, but a file is needed"));
    if (!S_ISREG(about.st_mode))
      throw io_error(path, text(who, ": this is not a regular file, so it cannot be mapped"));
    if (about.st_size == 0) throw io_error(path, text(who, ": the file is empty"));
    if (address_ == MAP_FAILED) throw io_error(path, text(who, ": cannot map the file: ", map_reason));
  }
  mapped_file(mapped_file const&) = delete;
  mapped_file& operator=(mapped_file const&) = delete;
  ~mapped_file() {
    if (address_ != nullptr && address_ != MAP_FAILED) ::munmap(address_, size_);
  }

  [[nodiscard]] std::span<unsigned char const> bytes() const noexcept {
    return {static_cast<unsigned char const*>(address_), size_};
  }
  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(size_); }

 private:
  // strerror is not thread-safe; the standard library's text is.
  static std::string reason() { return std::generic_category().message(errno); }

  void* address_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace trireme::data::detail
