#include "trireme/formats/file.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "scratch.hpp"

namespace {

namespace formats = trireme::formats;
using trireme::io_error;

/// Counts operations; the n-th fails with an errno, or ends the process.
class faulty_files : public formats::file_system {
 public:
  explicit faulty_files(int at = -1, int number = EIO) : at_(at), number_(number) {}
  std::vector<std::string> log;
  std::size_t most_bytes = 1 << 20;  // of one read or write
  int interruptions = 0;             // EINTR before each operation that may report it
  bool exits = false;

  int open(int at, char const* path, int flags, ::mode_t mode) override {
    return fails("open") ? -1 : file_system::open(at, path, flags, mode);
  }
  int status(int descriptor, struct ::stat& out) override {
    return fails("status") ? -1 : file_system::status(descriptor, out);
  }
  ::ssize_t read(int descriptor, void* to, std::size_t bytes, ::off_t at) override {
    return interrupted() || fails("read") ? -1 : file_system::read(descriptor, to, std::min(bytes, most_bytes), at);
  }
  ::ssize_t write(int descriptor, void const* from, std::size_t bytes) override {
    return interrupted() || fails("write") ? -1 : file_system::write(descriptor, from, std::min(bytes, most_bytes));
  }
  int truncate(int descriptor, ::off_t bytes) override {
    return fails("truncate") ? -1 : file_system::truncate(descriptor, bytes);
  }
  int synchronise(int descriptor) override { return fails("synchronise") ? -1 : file_system::synchronise(descriptor); }
  int rename(int at, char const* from, char const* to) override {
    return fails("rename") ? -1 : file_system::rename(at, from, to);
  }
  int unlink(int at, char const* path) override { return fails("unlink") ? -1 : file_system::unlink(at, path); }
  int close(int descriptor) override {
    bool const failed = fails("close");
    auto const result = file_system::close(descriptor);
    if (failed) errno = number_;
    return failed ? -1 : result;
  }

 private:
  bool interrupted() {
    if (pending_-- > 0) {
      errno = EINTR;
      return true;
    }
    pending_ = interruptions;
    return false;
  }
  bool fails(char const* name) {
    log.emplace_back(name);
    if (static_cast<int>(log.size()) - 1 != at_) return false;
    if (exits) ::_exit(0);
    errno = number_;
    return true;
  }

  int at_;
  int number_;
  int pending_ = 0;
};

std::string message(auto&& action) {
  try {
    action();
  } catch (io_error const& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a file is written, extended, cut and read in parts", "[formats][file]") {
  scratch dir;
  auto const path = dir / "a";
  {
    formats::file out(path, formats::file::access::create);
    out.write("hello ");
    out.write("world");
    out.synchronise();
    CHECK(out.size() == 11);
    out.close();
    out.close();
  }
  {
    formats::file more(path, formats::file::access::extend);
    more.truncate(6);
    more.write("you");
    std::array<std::byte, 3> part{};
    more.read(6, part);
    CHECK(part[0] == std::byte{'y'});
  }
  CHECK(formats::read_text(path) == "hello you");
  auto moved = formats::file(path, formats::file::access::read);
  auto const other = std::move(moved);
  std::array<std::byte, 4> part{};
  other.read(5, part);
  CHECK_THROWS_AS(other.read(6, part), io_error);
  CHECK(message([&] { other.read(6, part); }) == path + ": cannot read: the file ends at byte 9");
}

TEST_CASE("file errors name the path and the reason", "[formats][file]") {
  scratch dir;
  CHECK(message([&] { static_cast<void>(formats::read_file(dir / "nowhere")); }) ==
        (dir / "nowhere") + ": cannot open: no such file or directory");
  CHECK(message([&] { static_cast<void>(formats::read_file(dir.path())); }) == dir.path() + ": is not a regular file");
  formats::atomic_write(dir / "a", "12345");
  CHECK(message([&] { static_cast<void>(formats::read_file(dir / "a", 4)); }) ==
        (dir / "a") + ": has 5 bytes, more than the 4 expected");
  faulty_files full(2, ENOSPC);
  CHECK(message([&] { formats::atomic_write(dir / "b", "x", full); }) ==
        (dir / "b.partial") + ": cannot write: no space left on device");
  CHECK(message([&] { formats::atomic_write(dir / "no" + "/b", "x"); }) ==
        (dir / "no") + ": cannot open the directory: no such file or directory");
  CHECK(message([&] { formats::file(dir / "no" + "/b", formats::file::access::create); }) ==
        (dir / "no") + "/b: cannot open for writing: no such file or directory");
  if (::access("/dev/full", W_OK) == 0) {
    formats::file device("/dev/full", formats::file::access::extend);
    CHECK(message([&] { device.write("x"); }) == "/dev/full: cannot write: no space left on device");
  }
}

TEST_CASE("directory_of gives the directory of a path", "[formats][file]") {
  CHECK(formats::directory_of("a/b") == "a");
  CHECK(formats::directory_of("/a/b/c") == "/a/b");
  CHECK(formats::directory_of("b") == ".");
  CHECK(formats::directory_of("/b") == "/");
}

TEST_CASE("short transfers and interruptions by signals are continued", "[formats][file]") {
  scratch dir;
  std::string const content = "something of a few bytes";
  faulty_files slow;
  slow.most_bytes = 3;
  slow.interruptions = 2;
  formats::atomic_write(dir / "a", content, slow);
  CHECK(formats::read_text(dir / "a", 100, slow) == content);
}

TEST_CASE("atomic_write synchronises the file, renames, then synchronises the directory", "[formats][file]") {
  scratch dir;
  faulty_files files;
  formats::atomic_write(dir / "a", "new", files);
  CHECK(files.log ==
        std::vector<std::string>{"open", "open", "write", "synchronise", "close", "rename", "synchronise", "close"});
}

TEST_CASE("a file that is replaced without the device is not synchronised, and appears whole or not at all",
          "[formats][file]") {
  scratch dir;
  formats::atomic_write(dir / "a", "old");
  faulty_files files;
  auto const replace = [&](formats::file_system& through) {
    formats::atomic_file to(dir / "a", through);
    to.write(std::as_bytes(std::span("new", 3)));
    to.publish_unsynchronised();
  };
  for (int at = 0; at < 5; ++at) {
    faulty_files failing(at);
    CHECK(message([&] { replace(failing); }) != "");
    CHECK(formats::read_text(dir / "a") == "old");
    CHECK(formats::directory(dir.path()).names() == std::vector<std::string>{"a"});
  }
  replace(files);
  CHECK(files.log == std::vector<std::string>{"open", "open", "write", "close", "rename", "close"});
  CHECK(formats::read_text(dir / "a") == "new");
}

TEST_CASE("atomic_write that fails at any operation keeps a whole file and removes the temporary", "[formats][file]") {
  for (int const number : {ENOSPC, EIO}) {
    for (int at = 0; at < 7; ++at) {
      scratch dir;
      formats::atomic_write(dir / "a", "old");
      faulty_files files(at, number);
      CHECK_FALSE(message([&] { formats::atomic_write(dir / "a", "new", files); }).empty());
      auto const content = formats::read_text(dir / "a");
      CHECK(content == (at < 6 ? "old" : "new"));
      CHECK(dir.entries() == 1);
    }
  }
}

TEST_CASE("atomic_write in a process that ends at any operation leaves the old or the new file", "[formats][file]") {
  for (int at = 0; at < 9; ++at) {
    scratch dir;
    formats::atomic_write(dir / "a", "old");
    auto const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      faulty_files files(at);
      files.exits = true;
      formats::atomic_write(dir / "a", "new", files);
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    auto const content = formats::read_text(dir / "a");
    CHECK((content == "old" || content == "new"));
    formats::atomic_write(dir / "a", "next");  // a left-over temporary file does not matter
    CHECK(formats::read_text(dir / "a") == "next");
    CHECK(dir.entries() == 1);
  }
}

TEST_CASE("the files of a set are all replaced or none is", "[formats][file]") {
  auto const write = [](std::string const& to, formats::file_system& files) {
    formats::directory const in(to, files);
    formats::file_set set;
    set.add(in, "a", "new");
    formats::atomic_file larger(in, "b");
    larger.write(std::as_bytes(std::span("new as well", 11)));
    set.add(std::move(larger));
    set.add(in, "same", "as it was");
    set.appear();
  };
  faulty_files all;
  int operations = 0;
  {
    scratch dir;
    formats::atomic_write(dir / "same", "as it was");
    write(dir.path(), all);
    CHECK(formats::read_text(dir / "a") == "new");
    CHECK(formats::read_text(dir / "b") == "new as well");
    CHECK(dir.entries() == 3);
    auto const first = std::find(all.log.begin(), all.log.end(), "rename");
    operations = static_cast<int>(first - all.log.begin());
    CHECK(std::count(first, all.log.end(), "rename") == 2);
    CHECK(std::count(all.log.begin(), first, "write") == 2);
    CHECK(std::count(all.log.begin(), first, "synchronise") == 2);
    CHECK(std::count(first, all.log.end(), "synchronise") == 1);
  }
  for (int at = 0; at <= operations; ++at) {
    INFO(at << ": " << all.log[static_cast<std::size_t>(at)]);
    scratch dir;
    for (auto const* const name : {"a", "b"}) formats::atomic_write(dir / name, "old");
    formats::atomic_write(dir / "same", "as it was");
    faulty_files files(at, ENOSPC);
    auto const said = message([&] { write(dir.path(), files); });
    bool const old = formats::read_text(dir / "a") == "old" && formats::read_text(dir / "b") == "old";
    bool const whole = formats::read_text(dir / "a") == "new" && formats::read_text(dir / "b") == "new as well";
    CHECK((said.empty() ? whole : old));  // some operations only query the state
    CHECK(formats::read_text(dir / "same") == "as it was");
    CHECK(dir.entries() == 3);
  }
  scratch dir;
  formats::make_directories(dir / "b");
  CHECK(message([&] { write(dir.path(), formats::real_files()); }) ==
        (dir / "b") + ": is a directory, but a file must be written there");
  CHECK(dir.entries() == 1);
}

TEST_CASE("writing never follows a symbolic or hard link", "[formats][file]") {
  scratch dir;
  formats::atomic_write(dir / "precious", "precious");
  for (bool const hard : {false, true}) {
    auto const link = dir / "a.partial";
    REQUIRE((hard ? ::link((dir / "precious").c_str(), link.c_str()) : ::symlink("precious", link.c_str())) == 0);
    formats::atomic_write(dir / "a", "new");
    CHECK(formats::read_text(dir / "a") == "new");
    CHECK(formats::read_text(dir / "precious") == "precious");
    CHECK(dir.entries() == 2);
  }
  REQUIRE(::symlink("precious", (dir / "b").c_str()) == 0);
  formats::atomic_write(dir / "b", "new");
  CHECK(formats::read_text(dir / "precious") == "precious");
  REQUIRE(::mkdir((dir / "c.partial").c_str(), 0777) == 0);
  CHECK(message([&] { formats::atomic_write(dir / "c", "new"); }) ==
        (dir / "c.partial") + ": cannot remove the existing file: is a directory");
}

TEST_CASE("a directory does not follow links to its contents", "[formats][file]") {
  scratch dir;
  scratch outside;
  formats::atomic_write(outside / "precious", "precious");
  REQUIRE(::symlink(outside.path().c_str(), (dir / "linked").c_str()) == 0);
  REQUIRE(::symlink((outside / "precious").c_str(), (dir / "file").c_str()) == 0);
  formats::directory const here(dir.path());
  CHECK(here.names() == std::vector<std::string>{"file", "linked"});
  CHECK(message([&] { static_cast<void>(here.below("linked")); }) ==
        (dir / "linked") + ": is not a directory (a symbolic link to one is not followed here)");
  CHECK(message([&] { static_cast<void>(formats::read_text(here, "file")); }) ==
        (dir / "file") + ": is a symbolic link, which is not followed here");
  CHECK(message([&] { formats::file(here, "file", formats::file::access::extend); }) ==
        (dir / "file") + ": is a symbolic link, which is not followed here");
  CHECK(here.remove("linked"));
  CHECK(here.remove("file"));
  CHECK(here.remove("nothing"));
  CHECK(outside.entries() == 1);
  CHECK(dir.entries() == 0);
  auto const inner = here.make("inner");
  formats::atomic_write(inner, "a", "1");
  CHECK(formats::read_text(dir / "inner/a") == "1");
  REQUIRE(::symlink(outside.path().c_str(), (dir / "inner/linked").c_str()) == 0);
  CHECK(here.remove("inner"));
  CHECK(outside.entries() == 1);
  for (auto const* const name : {"", ".", "..", "a/b", "../a"}) {
    CHECK_THROWS_AS(here.below(name), trireme::config_error);
    CHECK_THROWS_AS(here.remove(name), trireme::config_error);
    CHECK_THROWS_AS(formats::atomic_write(here, name, "x"), trireme::config_error);
  }
  CHECK(dir.entries() == 0);
  // Links in the path to a directory, and a link to it, are followed.
  REQUIRE(::symlink(outside.path().c_str(), (dir / "linked").c_str()) == 0);
  CHECK(formats::directory(dir / "linked").names() == std::vector<std::string>{"precious"});
  CHECK_THROWS_AS(formats::directory(dir / "linked", formats::real_files(), formats::directory::links::refused),
                  io_error);
}

TEST_CASE("opening a pipe in place of a file does not block", "[formats][file]") {
  scratch dir;
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(message([&] { static_cast<void>(formats::read_text(dir / "pipe")); }) ==
        (dir / "pipe") + ": is not a regular file");
}
