#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/detail/descriptor.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/random_bits.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/core/text.hpp"

namespace trireme::comm::detail {

/// What a process that has announced itself is told: its rank of how many, and the number of the membership.
struct admission {
  std::int64_t rank = 0, size = 0, membership = 0;
};

/// The directory in which the processes of a run find each other between memberships. Its files:
///
///   join-ID            a process that wants to join, which holds a lock on it
///   admitted-ID        the reply: rank, size and membership
///   meeting-N          where the ranks of membership N meet
///   memberships.jsonl  what has happened
///   ended              the run is over
///
/// Errors   config_error if it is not a directory that belongs to this user and that others cannot write to; io_error.
class announcements {
 public:
  announcements(std::string_view who, std::string path) : who_(who), path_(std::move(path)) {
    if (path_.empty())
      throw config_error(text(who_, ": .directory is empty; give a directory, the same for all processes of the run"));
    if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) fail(path_, "cannot be made");
    struct ::stat status {};
    if (::stat(path_.c_str(), &status) != 0) fail(path_, "cannot be read");
    if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 022) != 0)
      throw config_error(text(who_, ": ", path_,
                              " must be a directory that belongs to this user and that others cannot write to; "
                              "give another .directory"));
    if (auto const* const found = ::realpath(path_.c_str(), nullptr); found != nullptr) {
      path_ = found;
      ::free(const_cast<char*>(found));
    }
  }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::string at(std::string_view name) const { return text(path_, "/", name); }
  /// The place of the state in a file system that is in memory: the same for all processes of the run.
  [[nodiscard]] std::string state_in(std::string const& memory) const {
    return text(memory, "/trireme-", ::geteuid(), "-", sha256().update(path_).hexadecimal().substr(0, 32));
  }

  // Of a process that wants to join.

  void announce() {
    own_ = text(::getpid(), "-", trireme::detail::random_bits());
    auto const partial = at(text("partial-", own_));
    file_ = descriptor(::open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file_.is_open() || !file_.lock() || ::rename(partial.c_str(), at("join-" + own_).c_str()) != 0)
      fail(partial, "cannot be written");
  }
  [[nodiscard]] std::optional<admission> reply() const {
    auto const numbers = read_numbers(at("admitted-" + own_));
    if (!numbers) return std::nullopt;
    ::unlink(at("admitted-" + own_).c_str());
    return admission{(*numbers)[0], (*numbers)[1], (*numbers)[2]};
  }
  void withdraw() noexcept {
    ::unlink(at("join-" + own_).c_str());
    ::unlink(at("admitted-" + own_).c_str());
    file_.close();
  }

  // Of the first rank.

  /// How many have announced themselves, among them some that may have died.
  [[nodiscard]] int count() const { return static_cast<int>(names("join-").size()); }
  /// Those that live; the files of the others are removed.
  [[nodiscard]] std::vector<std::string> alive() const {
    std::vector<std::string> out;
    for (auto const& name : names("join-")) {
      auto const path = at(name);
      descriptor const file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      if (file.is_open() && file.is_locked(false))
        out.push_back(name.substr(5));
      else
        ::unlink(path.c_str());
    }
    return out;
  }
  void admit(std::string const& id, admission const& what) const {
    write("admitted-" + id, text(what.rank, " ", what.size, " ", what.membership));
    ::unlink(at("join-" + id).c_str());
  }
  /// Removes what an earlier run has left.
  void begin() const {
    static_cast<void>(alive());
    ::unlink(at("ended").c_str());
    for (auto const& name : names("admitted-")) ::unlink(at(name).c_str());
  }
  void end() const { write("ended", "."); }
  [[nodiscard]] bool has_ended() const noexcept { return ::access(at("ended").c_str(), F_OK) == 0; }
  /// Adds a line to the record; `first` begins a new one.
  void record(std::string const& line, bool first) const {
    auto const path = at("memberships.jsonl");
    descriptor const file(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | (first ? O_TRUNC : 0), 0600));
    auto const all = line + "\n";
    if (!file.is_open() || ::write(file.number(), all.data(), all.size()) != static_cast<::ssize_t>(all.size()))
      fail(path, "cannot be written");
  }

 private:
  [[noreturn]] void fail(std::string const& path, std::string_view what) const {
    auto const number = errno;
    throw io_error(path, text(what, ": ", system_sentence(number), " (", who_, ")"), number);
  }
  [[nodiscard]] std::vector<std::string> names(std::string_view prefix) const {
    auto const close = [](::DIR* open) { ::closedir(open); };
    std::unique_ptr<::DIR, decltype(close)> const open(::opendir(path_.c_str()), close);
    if (open == nullptr) fail(path_, "cannot be read");
    std::vector<std::string> out;
    while (auto const* const entry = ::readdir(open.get()))
      if (std::string_view const name(static_cast<char const*>(entry->d_name)); name.starts_with(prefix))
        out.emplace_back(name);
    std::ranges::sort(out);
    return out;
  }
  /// Under another name first, so that nobody reads a part of it.
  void write(std::string const& name, std::string const& content) const {
    auto const partial = at("partial-" + name);
    {
      descriptor const file(::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!file.is_open() ||
          ::write(file.number(), content.data(), content.size()) != static_cast<::ssize_t>(content.size()))
        fail(partial, "cannot be written");
    }
    if (::rename(partial.c_str(), at(name).c_str()) != 0) fail(partial, "cannot be renamed");
  }
  [[nodiscard]] static std::optional<std::array<std::int64_t, 3>> read_numbers(std::string const& path) {
    descriptor const file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    std::array<char, 128> content{};
    auto const got = file.is_open() ? ::read(file.number(), content.data(), content.size()) : ::ssize_t{-1};
    if (got <= 0) return std::nullopt;
    std::array<std::int64_t, 3> out{};
    auto const* at = content.data();
    auto const* const end = at + got;
    for (auto& each : out) {
      auto const read = std::from_chars(at, end, each);
      if (read.ec != std::errc()) return std::nullopt;
      at = std::min(read.ptr + 1, end);
    }
    return out;
  }

  std::string who_;
  std::string path_;
  std::string own_;
  descriptor file_;
};

}  // namespace trireme::comm::detail
