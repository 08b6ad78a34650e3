#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <optional>
#include <string>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"

/// Holds a run's directory for this process: a lock on DIRECTORY/lock, which the kernel takes back when the process
/// ends, however it ends. While it is held the file says who holds it; without a lock on it, it says nothing.
class run_lock {
 public:
  /// Throws io_error that names the holder if another process has it.
  explicit run_lock(std::string const& directory) : path_(directory + "/lock") {
    for (;;) {
      descriptor_ = trireme::formats::detail::checked(
          path_, "open", [&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666); });
      if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
        auto const why = errno;
        if (why == ENOSYS || why == EOPNOTSUPP || why == ENOLCK) {
          std::fprintf(stderr, "train_gpt: %s: this file system has no locks: a second start is not noticed here\n",
                       directory.c_str());
          break;
        }
        auto const who = why == EWOULDBLOCK ? holder() : std::string();
        ::close(descriptor_);
        if (why == EWOULDBLOCK) {
          throw trireme::io_error(directory, trireme::text("another process trains here: ", who,
                                                           "; wait for it or end it, or choose another --name"));
        }
        throw trireme::formats::detail::io_failure(path_, "lock", why);
      }
      if (is_at_path()) break;
      ::close(descriptor_);  // the run before stepped aside between the two calls, and its lock with it
    }
    sign();
  }
  run_lock(run_lock&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  run_lock& operator=(run_lock&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~run_lock() {
    if (descriptor_ < 0) return;
    [[maybe_unused]] auto const emptied = ::ftruncate(descriptor_, 0);  // the lock says who holds it, not this text
    ::close(descriptor_);
  }

 private:
  [[nodiscard]] bool is_at_path() const {
    struct ::stat own {
    }, there{};
    return ::fstat(descriptor_, &own) == 0 && ::lstat(path_.c_str(), &there) == 0 && own.st_ino == there.st_ino &&
           own.st_dev == there.st_dev;
  }
  [[nodiscard]] std::string holder() const {
    std::array<char, 1024> text{};
    auto const got = ::pread(descriptor_, text.data(), text.size(), 0);
    try {
      auto const said =
          trireme::formats::json::parse({text.data(), got > 0 ? static_cast<std::size_t>(got) : 0}, path_);
      return trireme::text("process ", said.at("process").as_int64(), " on ", said.at("host").as_string(), ", since ",
                           said.at("since").as_string());
    } catch (trireme::error const&) {  // it has only just begun
      return "it has not said which";
    }
  }
  void sign() {
    namespace json = trireme::formats::json;
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
    std::array<char, 32> since{};
    auto const now = std::time(nullptr);
    std::tm utc{};
    ::gmtime_r(&now, &utc);
    std::strftime(since.data(), since.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
    auto const line = json::to_string(json::value::make({{"process", static_cast<std::int64_t>(::getpid())},
                                                         {"host", std::string(host.data())},
                                                         {"since", std::string(since.data())}})) +
                      "\n";
    // On a full disk the lock is held without its holder's name.
    if (::ftruncate(descriptor_, 0) == 0) {
      [[maybe_unused]] auto const put = ::pwrite(descriptor_, line.data(), line.size(), 0);
    }
  }

  std::string path_;
  int descriptor_ = -1;
};
