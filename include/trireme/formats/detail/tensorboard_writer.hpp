#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>

#include "trireme/formats/detail/tensorboard_events.hpp"
#include "trireme/formats/tensorboard.hpp"

namespace trireme::formats::tensorboard {

namespace detail {

inline double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Removes an incomplete record at the end, and returns the remaining number of bytes.
inline std::uint64_t repair(file& existing) {
  std::vector<std::byte> bytes(existing.size());
  existing.read(0, bytes);
  auto const list = split_records(bytes);
  if (list.tail == tail::corrupt) {
    throw format_error(existing.path(), list.valid_bytes, "a record with a wrong checksum, followed by other records");
  }
  if (list.tail == tail::torn) existing.truncate(list.valid_bytes);
  return list.valid_bytes;
}

}  // namespace detail

inline writer::writer(std::string const& path, writer_options options)
    : options_((options.validate(), std::move(options))),  // validate before a file is created
      file_(path, file::access::extend, options_.files == nullptr ? real_files() : *options_.files) {
  if (!options_.clock) options_.clock = detail::seconds_since_1970;
  written_ = detail::repair(file_);
  if (written_ > 0) return;
  append({options_.clock(), 0, "brain.Event:2", {}, false});
  flush();
}

inline writer::~writer() {
  try {
    flush();
  } catch (error const&) {  // call flush() to get the error
  }
}

inline void writer::add(std::int64_t step, std::span<scalar const> scalars) {
  append({options_.clock(), step, {}, {scalars.begin(), scalars.end()}, false});
}

inline void writer::restart(std::int64_t step) { append({options_.clock(), step, {}, {}, true}); }

inline void writer::append(event what) {
  pending_ += frame(encode(what));
  if (++pending_events_ == options_.flush_every) flush();
}

inline void writer::flush() {
  if (pending_.empty()) return;
  auto const content = std::exchange(pending_, {});
  pending_events_ = 0;
  try {
    file_.write(content);
    written_ += content.size();
  } catch (io_error const&) {
    // Half a record in the middle would hide all later records from every reader.
    file_.truncate(written_);
    throw;
  }
}

inline std::string event_file_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {'h', 'o', 's', 't'};
  static std::atomic<int> count{0};
  // Readers sort by name: files of one run that begin in the same second must keep their order.
  auto const microseconds = static_cast<std::int64_t>(detail::seconds_since_1970() * 1e6);
  auto const rest = std::to_string(1'000'000 + microseconds % 1'000'000).substr(1);
  return text("events.out.tfevents.", microseconds / 1'000'000, ".", rest, ".", std::string_view(host.data()), ".",
              ::getpid(), ".", count++);
}

}  // namespace trireme::formats::tensorboard
