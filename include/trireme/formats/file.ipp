#pragma once

#include <algorithm>
#include <cerrno>

#include "trireme/core/plural.hpp"
#include "trireme/formats/file.hpp"

namespace trireme::formats {

namespace detail {

TRIREME_BODY std::vector<std::byte> content_of(file const& from, std::uint64_t most) {
  auto const size = from.size();
  if (size > most)
    throw io_error(from.path(), text("has ", how_many(size, "byte"), ", more than the ", most, " expected"));
  std::vector<std::byte> out(static_cast<std::size_t>(size));
  from.read(0, out);
  return out;
}
TRIREME_BODY std::string text_of(std::vector<std::byte> const& bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

}  // namespace detail

TRIREME_BODY std::uint64_t file::size() const {
  struct ::stat status {};
  detail::checked(path_, "ask for the size", [&] { return files_->status(descriptor_, status); });
  if (!S_ISREG(status.st_mode)) throw io_error(path_, "is not a regular file");
  return static_cast<std::uint64_t>(status.st_size);
}

TRIREME_BODY void file::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    auto const count = std::min(to.size(), most_at_once);
    auto const got = static_cast<std::size_t>(detail::checked(
        path_, "read", [&] { return files_->read(descriptor_, to.data(), count, static_cast<::off_t>(offset)); }));
    if (got == 0) throw io_error(path_, text("cannot read: the file ends at byte ", offset));
    offset += got;
    to = to.subspan(got);
  }
}

TRIREME_BODY void file::write(std::span<std::byte const> from) {
  while (!from.empty()) {
    auto const count = std::min(from.size(), most_at_once);
    auto const put = static_cast<std::size_t>(
        detail::checked(path_, "write", [&] { return files_->write(descriptor_, from.data(), count); }));
    if (put == 0) throw io_error(path_, "cannot write: the device accepts no more bytes");
    from = from.subspan(put);
  }
}

TRIREME_BODY void file::truncate(std::uint64_t bytes) {
  detail::checked(path_, "truncate", [&] { return files_->truncate(descriptor_, static_cast<::off_t>(bytes)); });
}

TRIREME_BODY void file::synchronise() {
  detail::checked(path_, "synchronise", [&] { return files_->synchronise(descriptor_); });
}

TRIREME_BODY void file::close() {
  // Not repeated after a signal: the descriptor is closed by then, and its number may be in use again.
  auto const descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && files_->close(descriptor) < 0 && errno != EINTR) {
    throw detail::io_failure(path_, "close", errno);
  }
}

TRIREME_BODY void file::open(int at, char const* name, access how, int follow) {
  bool const reads = how == access::read;
  bool const creates = how == access::create;
  // Non-blocking: opening a pipe would wait for a writer.
  int const flags = (reads     ? O_RDONLY | O_NONBLOCK
                     : creates ? O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW
                               : O_RDWR | O_CREAT | O_APPEND) |
                    O_CLOEXEC | follow;
  bool removed = false;
  while ((descriptor_ = files_->open(at, name, flags, 0666)) < 0) {
    if (errno == EEXIST && creates && !std::exchange(removed, true)) {
      detail::checked(path_, "remove the existing file", [&] { return files_->unlink(at, name); });
    } else if (errno == ELOOP && follow != 0) {
      throw io_error(path_, "is a symbolic link, which is not followed here", ELOOP);
    } else if (errno != EINTR) {
      throw detail::io_failure(path_, reads ? "open" : "open for writing", errno);
    }
  }
}

TRIREME_BODY file::file(directory const& in, std::string const& name, access how)
    : path_(in.path_of(name)), files_(&in.files()) {
  if (name.find('/') != name.npos)
    throw config_error(text("trireme::formats::file: \"", name, "\" is not a file name"));
  open(in.descriptor(), name.c_str(), how, O_NOFOLLOW);
}

TRIREME_BODY std::vector<std::byte> read_file(std::string const& path, std::uint64_t most, file_system& files) {
  return detail::content_of(file(path, file::access::read, files), most);
}

TRIREME_BODY std::string read_text(std::string const& path, std::uint64_t most, file_system& files) {
  return detail::text_of(read_file(path, most, files));
}

TRIREME_BODY std::string read_text(directory const& in, std::string const& name, std::uint64_t most) {
  return detail::text_of(detail::content_of(file(in, name, file::access::read), most));
}

TRIREME_BODY atomic_file::~atomic_file() {
  if (!pending_) return;
  // An error here cannot be reported; a later attempt removes the same temporary file.
  in_.files().unlink(in_.descriptor(), temporary().c_str());
}

TRIREME_BODY void atomic_file::complete() {
  content_.synchronise();
  content_.close();
}

TRIREME_BODY void atomic_file::appear() {
  in_.rename(temporary(), name_);
  pending_ = false;
}

TRIREME_BODY void atomic_file::publish() {
  complete();
  appear();
  in_.synchronise();
}

TRIREME_BODY void atomic_file::publish_unsynchronised() {
  content_.close();
  appear();
}

TRIREME_BODY atomic_file::atomic_file(std::string const& path, file_system& files)
    : atomic_file(directory(directory_of(path), files), name_of(path)) {}

TRIREME_BODY atomic_file::atomic_file(directory in, std::string name)
    : in_(std::move(in)), name_(std::move(name)), content_(in_, temporary(), file::access::create) {}

TRIREME_BODY void file_set::add(atomic_file content) {
  // A rename cannot replace a directory, and would fail when other files have already been replaced.
  auto const& in = content.in();
  auto const there = in.files().open(in.descriptor(), content.name().c_str(), O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
  if (there >= 0) {
    in.files().close(there);
    throw io_error(in.path_of(content.name()), "is a directory, but a file must be written there");
  }
  content.complete();
  files_.push_back(std::move(content));
}

TRIREME_BODY void file_set::add(directory const& in, std::string const& name, std::string_view content) {
  try {
    if (read_text(in.path_of(name), content.size(), in.files()) == content) return;  // also through a link
  } catch (io_error const&) {  // it does not exist, or cannot be read
  }
  atomic_file to(in, name);
  to.write(std::as_bytes(std::span(content)));
  add(std::move(to));
}

TRIREME_BODY void file_set::appear() {
  for (auto& each : files_) each.appear();
  for (std::size_t i = 0; i < files_.size(); ++i) {
    bool const first = std::none_of(files_.begin(), files_.begin() + static_cast<std::ptrdiff_t>(i), [&](auto& before) {
      return before.in().descriptor() == files_[i].in().descriptor();
    });
    if (first) files_[i].in().synchronise();
  }
  files_.clear();
}

TRIREME_BODY void atomic_write(std::string const& path, std::span<std::byte const> bytes, file_system& files) {
  atomic_file to(path, files);
  to.write(bytes);
  to.publish();
}

TRIREME_BODY void atomic_write(std::string const& path, std::string_view characters, file_system& files) {
  atomic_write(path, std::as_bytes(std::span(characters)), files);
}

TRIREME_BODY void atomic_write(directory const& in, std::string const& name, std::string_view characters) {
  atomic_file to(in, name);
  to.write(std::as_bytes(std::span(characters)));
  to.publish();
}

}  // namespace trireme::formats
