#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

#include "trireme/core/dialect.hpp"

namespace trireme::comm::detail {

/// Owns a file descriptor.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~descriptor() { close(); }

  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }
  /// False if the system reports only now that a write has failed.
  bool close() noexcept { return number_ < 0 || ::close(std::exchange(number_, -1)) == 0; }

  /// Locks the first byte of a file until this process closes the file or ends.
  [[nodiscard]] bool lock() const noexcept {
    auto wish = first_byte();
    return ::fcntl(number_, F_OFD_SETLK, &wish) == 0;
  }
  /// Whether another process has the first byte locked; `unknown` if the system cannot tell.
  [[nodiscard]] bool is_locked(bool unknown) const noexcept {
    auto wish = first_byte();
    return ::fcntl(number_, F_OFD_GETLK, &wish) != 0 ? unknown : wish.l_type != F_UNLCK;
  }

 private:
  [[nodiscard]] static struct ::flock first_byte() noexcept {
    struct ::flock wish {};
    wish.l_type = F_WRLCK;
    wish.l_whence = SEEK_SET;
    wish.l_len = 1;
    return wish;
  }
  int number_ = -1;
};

[[nodiscard]] inline std::string system_sentence(int number) { return std::generic_category().message(number); }

}  // namespace trireme::comm::detail
