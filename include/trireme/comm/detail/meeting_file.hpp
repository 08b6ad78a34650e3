#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/comm/detail/handshake.hpp"
#include "trireme/comm/detail/socket.hpp"

namespace trireme::comm::detail {

/// The data that rank 0 publishes in a file for ranks of the same user on the same machine.
struct meeting_note {
  static constexpr std::size_t bytes = 48;
  static constexpr std::string_view magic{"TRIREMEf\x01\0\0\0", 12};
  int port = 0;
  std::string secret;

  [[nodiscard]] std::array<std::byte, bytes> packed() const noexcept {
    std::array<std::byte, bytes> out{};
    std::memcpy(out.data(), magic.data(), magic.size());
    put_number(out.data() + 12, static_cast<std::uint32_t>(port));
    std::memcpy(out.data() + 16, secret.data(), std::min<std::size_t>(secret.size(), 32));
    return out;
  }
  [[nodiscard]] static std::optional<meeting_note> parse(std::span<std::byte const, bytes> from) {
    auto const port = get_number<std::uint32_t>(from.data() + 12);
    if (std::memcmp(from.data(), magic.data(), magic.size()) != 0 || port < 1 || port > 65535) return std::nullopt;
    return meeting_note{static_cast<int>(port), std::string(reinterpret_cast<char const*>(from.data()) + 16, 32)};
  }
};

/// Opens a regular file that belongs to this user alone; otherwise sets `why`.
[[nodiscard]] inline descriptor open_private(std::string const& path, std::string& why) {
  descriptor out(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct ::stat status {};
  if (!out.is_open() || ::fstat(out.number(), &status) != 0) {
    why = text(path, " cannot be read: ", system_sentence(errno));
    out.close();
  } else if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    why = text(path, " must belong to this user and be unreadable for others; give it mode 0600");
    out.close();
  }
  return out;
}

/// Whether the process that wrote a note still runs: it holds a lock on the file, which ends with the process.
[[nodiscard]] inline bool is_in_use(descriptor const& file) noexcept { return file.is_locked(false); }

/// The note at `path`, if its rank 0 still runs; otherwise sets `why`.
[[nodiscard]] inline std::optional<meeting_note> read_note(std::string const& path, std::string& why) {
  auto const file = open_private(path, why);
  if (!file.is_open()) return std::nullopt;
  std::array<std::byte, meeting_note::bytes + 1> bytes{};
  auto const got = ::pread(file.number(), bytes.data(), bytes.size(), 0);
  auto note =
      got == meeting_note::bytes ? meeting_note::parse(std::span(bytes).first<meeting_note::bytes>()) : std::nullopt;
  if (!note) {
    why = text(path, " is not the file of a meeting");
  } else if (!is_in_use(file)) {
    why = text(path, " belongs to a rank 0 that has ended");
    return std::nullopt;
  }
  return note;
}

/// The first line of a file that only this user may read.
[[nodiscard]] inline std::string read_secret(std::string const& path) {
  std::string why;
  auto const file = open_private(path, why);
  if (!file.is_open()) throw config_error(text("trireme::comm::rendezvous: the secret's file ", why));
  std::array<char, 4096> content{};
  auto const got = ::pread(file.number(), content.data(), content.size(), 0);
  std::string_view const all(content.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  return std::string(all.substr(0, all.find_first_of("\r\n")));
}

/// The directory of this user's meetings on this machine, in $TMPDIR or /tmp.
[[nodiscard]] inline std::string directory_name() { return text("trireme-", ::geteuid()); }
[[nodiscard]] inline std::string meeting_directory(std::string const& temporary) {
  return text(temporary.empty() ? "/tmp" : temporary, "/", directory_name());
}

/// The file of a meeting, from its publication until the meeting is over. Written under another name and renamed, so
/// that it is either complete or absent. A file left by a killed process is replaced by the next meeting at its path,
/// or removed by any next meeting.
class meeting_file {
 public:
  meeting_file(std::string path, meeting_note const& note) : path_(std::move(path)), note_(note.packed()) {
    auto const where = directory();
    own_directory_ = where.substr(where.rfind('/') + 1) == directory_name();
    if (own_directory_) sweep();
    publish();
  }
  meeting_file(meeting_file const&) = delete;
  meeting_file& operator=(meeting_file const&) = delete;
  ~meeting_file() {
    if (is_there()) ::unlink(path_.c_str());
    if (own_directory_) ::rmdir(directory().c_str());  // unless another meeting is in it
  }
  /// Publishes it again if it has been removed.
  void keep() {
    if (!is_there()) publish();
  }

 private:
  [[nodiscard]] std::string directory() const { return path_.substr(0, path_.rfind('/')); }

  [[nodiscard]] bool is_there() const noexcept {
    struct ::stat named {};
    struct ::stat own {};
    return file_.is_open() && ::lstat(path_.c_str(), &named) == 0 && ::fstat(file_.number(), &own) == 0 &&
           named.st_ino == own.st_ino && named.st_dev == own.st_dev;
  }
  void make_directory() const {
    auto const where = directory();
    struct ::stat status {};
    if (::mkdir(where.c_str(), 0700) != 0 && errno != EEXIST)
      throw config_error(text("trireme::comm::rendezvous: cannot make ", where, ": ", system_sentence(errno)));
    if (::lstat(where.c_str(), &status) == 0 &&
        (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0))
      throw config_error(text("trireme::comm::rendezvous: ", where,
                              " must be a directory that belongs to this user and is closed to others; "
                              "remove it, or set TMPDIR to another place"));
  }
  void publish() {
    std::string ignored;
    if (auto const other = open_private(path_, ignored); other.is_open() && is_in_use(other))
      throw config_error(text("trireme::comm::rendezvous: another run meets at ", path_,
                              "; give each run a TRIREME_JOB or file of its own"));
    auto const partial = text(path_, ".", ::getpid(), ".partial");
    int failed = 0;
    for (int attempt = 0; attempt < 100; ++attempt) {  // another meeting may remove a file that is not locked yet
      if (own_directory_) make_directory();
      ::unlink(partial.c_str());
      file_ = descriptor(::open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (file_.is_open() && file_.lock() &&
          ::write(file_.number(), note_.data(), note_.size()) == static_cast<::ssize_t>(note_.size()) &&
          ::rename(partial.c_str(), path_.c_str()) == 0)
        return;
      failed = errno;
      ::unlink(partial.c_str());
      if (failed != ENOENT || !own_directory_) break;
    }
    throw config_error(text("trireme::comm::rendezvous: cannot write ", path_, ": ", system_sentence(failed)));
  }
  /// Removes files that killed processes have left in the directory.
  void sweep() const {
    auto const close = [](::DIR* open) { ::closedir(open); };
    std::unique_ptr<::DIR, decltype(close)> const open(::opendir(directory().c_str()), close);
    if (open == nullptr) return;
    while (auto const* const entry = ::readdir(open.get())) {
      auto const path = text(directory(), "/", static_cast<char const*>(entry->d_name));
      std::string ignored;
      auto const file = open_private(path, ignored);
      if (file.is_open() && path != path_ && !is_in_use(file)) ::unlink(path.c_str());
    }
  }

  std::string path_;
  std::array<std::byte, meeting_note::bytes> note_;
  bool own_directory_ = false;  ///< created if it does not exist, removed once it is empty
  descriptor file_;
};

}  // namespace trireme::comm::detail
