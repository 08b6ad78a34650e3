#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/core/text.hpp"

namespace trireme {

/// Where an error happened: which rank, and in which operation. A rank of -1 means "not in a group".
struct origin {
  int rank = -1;
  std::string operation;
  friend bool operator==(origin const&, origin const&) = default;
};

/// The root of every exception that trireme throws.
///
/// `what()` is one sentence that starts with the public name, says what is wrong, where, and what to do.
/// Library code throws; it never ends the program.
class error : public std::runtime_error {
 public:
  explicit error(std::string const& message, origin where = {})
      : std::runtime_error(where.rank < 0 ? message : text("rank ", where.rank, ": ", message)),
        where_(std::move(where)) {}
  [[nodiscard]] int rank() const noexcept { return where_.rank; }
  [[nodiscard]] std::string const& operation() const noexcept { return where_.operation; }

 private:
  origin where_;
};

/// The caller's request is invalid: a shape, an option or a combination is wrong.
struct config_error : error {
  using error::error;
};

/// A communicator failed: a peer died, was later than the deadline, or the transport reported an error.
struct comm_error : error {
  using error::error;
};

/// A device or its driver reported an error: a kernel that failed, a call that was refused. What was queued on the
/// device before is lost with it, so it is handled as a failed communicator.
struct device_error : comm_error {
  using comm_error::comm_error;
};

/// An assertion of the active level failed (see assertion.hpp).
struct assertion_error : error {
  using error::error;
};

/// A numerical failure that more steps will not repair (non-finite gradients again and again).
struct numeric_error : error {
  using error::error;
};

/// A file could not be opened, read or written. Carries the system's errno, or 0 if no system call has failed.
struct io_error : error {
  io_error(std::string path, std::string_view reason, int number = 0)
      : error(text(path, ": ", reason)), path_(std::move(path)), number_(number) {}
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  std::string path_;
  int number_;
};

/// What is known when the memory of a device is used up, in bytes.
struct device_memory_state {
  std::size_t asked = 0;    ///< by the allocation that failed
  std::size_t planned = 0;  ///< for all that the rank holds, by its last plan; 0: no plan is known
  std::size_t free = 0;     ///< of the device
  std::size_t total = 0;    ///< of the device; 0: its driver does not say
};

/// The memory of a device is used up. A std::bad_alloc, as in host memory, but its what() is one sentence with the
/// numbers and what to do.
class device_memory_error : public std::bad_alloc {
 public:
  device_memory_error(std::string const& sentence, device_memory_state const& state)
      : sentence_(sentence), state_(state) {}
  [[nodiscard]] char const* what() const noexcept override { return sentence_.what(); }
  [[nodiscard]] device_memory_state const& state() const noexcept { return state_; }

 private:
  std::runtime_error sentence_;  // whose copies share the text, so that a copy does not throw
  device_memory_state state_;
};

/// A file was read but is invalid. Carries the byte offset at which that was detected.
struct format_error : error {
  format_error(std::string path, std::uint64_t offset, std::string_view reason)
      : error(text(path, ": byte ", offset, ": ", reason)), path_(std::move(path)), offset_(offset) {}
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  std::string path_;
  std::uint64_t offset_;
};

}  // namespace trireme
