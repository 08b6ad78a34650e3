#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"

/// Holds a run's directory for this process: a lock on DIRECTORY/lock, which the kernel releases when the process ends
/// for any reason. While the lock is held the file names the holder; without a lock its content means nothing.
class run_lock {
 public:
  /// Throws io_error that names the holder if another process has it.
  explicit run_lock(std::string const& directory) : path_(directory + "/lock") {
    for (;;) {
      descriptor_ = trireme::formats::detail::checked(
          path_, "open", [&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666); });
      int taken = ::flock(descriptor_, LOCK_EX | LOCK_NB);
      for (int tries = 0; taken != 0 && errno == EWOULDBLOCK && tries < 3; ++tries) {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(2));  // another process may have held it for a moment in expect_free()
        taken = ::flock(descriptor_, LOCK_EX | LOCK_NB);
      }
      if (taken != 0) {
        auto const why = errno;
        if (why == ENOSYS || why == EOPNOTSUPP || why == ENOLCK) {
          std::fprintf(
              stderr,
              "train_gpt: %s: this file system has no locks, so a second process on this run would not be detected\n",
              directory.c_str());
          break;
        }
        auto const who = why == EWOULDBLOCK ? holder(path_, descriptor_) : std::string();
        ::close(descriptor_);
        if (why == EWOULDBLOCK) throw held_by(directory, who);
        throw trireme::formats::detail::io_failure(path_, "lock", why);
      }
      if (is_at_path()) break;
      ::close(descriptor_);  // the earlier run was renamed between the two calls, and its lock with it
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
    [[maybe_unused]] auto const emptied = ::ftruncate(descriptor_, 0);  // the lock decides, not this text
    ::close(descriptor_);
  }

  /// Throws io_error that names the holder if another process has the lock of this directory; changes nothing.
  static void expect_free(std::string const& directory) {
    auto const path = directory + "/lock";
    int const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return;
    bool const held = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    auto const who = held ? holder(path, file) : std::string();
    ::close(file);
    if (held) throw held_by(directory, who);
  }

 private:
  [[nodiscard]] static trireme::io_error held_by(std::string const& directory, std::string const& who) {
    return {directory,
            trireme::text("another process trains here: ", who, "; wait for it or end it, or choose another --name")};
  }
  [[nodiscard]] bool is_at_path() const {
    struct ::stat own {
    }, there{};
    return ::fstat(descriptor_, &own) == 0 && ::lstat(path_.c_str(), &there) == 0 && own.st_ino == there.st_ino &&
           own.st_dev == there.st_dev;
  }
  /// The holder of the lock according to the file; the holder may not have written it yet and is given a moment.
  [[nodiscard]] static std::string holder(std::string const& path, int descriptor) {
    for (int asked = 0; asked < 20; ++asked) {
      std::array<char, 1024> text{};
      auto const got = ::pread(descriptor, text.data(), text.size(), 0);
      try {
        auto const said =
            trireme::formats::json::parse({text.data(), got > 0 ? static_cast<std::size_t>(got) : 0}, path);
        return trireme::text("process ", said.at("process").as_int64(), " on ", said.at("host").as_string(), ", since ",
                             said.at("since").as_string());
      } catch (trireme::error const&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    return "process unknown";
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
    // On a full disk the lock is held without the holder's name.
    if (::ftruncate(descriptor_, 0) == 0) {
      [[maybe_unused]] auto const put = ::pwrite(descriptor_, line.data(), line.size(), 0);
    }
  }

  std::string path_;
  int descriptor_ = -1;
};
