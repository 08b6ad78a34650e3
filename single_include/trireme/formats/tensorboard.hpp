// Trireme 0.1.0: trireme/formats/tensorboard.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: b0757d2546cfb0b458c2fa7fb564383d22ccc9db47e2f652fd19d123c9418232
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/crc32c.hpp"

// ---- trireme/formats/tensorboard.hpp
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::formats::tensorboard {

/// A named number of one step.
struct scalar {
  std::string tag;
  float value = 0;
  friend bool operator==(scalar const&, scalar const&) = default;
};

/// The content of an event file: one event per record. Unknown members of a file are ignored.
struct event {
  double wall_time = 0;  ///< seconds since 1970
  std::int64_t step = 0;
  std::string file_version;  ///< "brain.Event:2" in the first event, else empty
  std::vector<scalar> scalars;
  bool restart = false;  ///< the session starts (again) at `step`: what was logged for it and later steps is discarded
  friend bool operator==(event const&, event const&) = default;
};

/// Encodes an event as a protocol buffer of type tensorflow.Event.
[[nodiscard]] std::string encode(event const& what);

/// Decodes an event from bytes of a file. Throws format_error(path, offset + byte, reason).
[[nodiscard]] event decode(std::span<std::byte const> bytes, std::string const& path, std::uint64_t offset = 0);

/// Makes a record: length, checksum of the length, bytes, checksum of the bytes.
[[nodiscard]] std::string frame(std::string_view content);

/// How the records of a file end.
enum class tail {
  whole,    ///< with a complete record
  torn,     ///< in an incomplete record, or in zeros: the result of a crash or power loss
  corrupt,  ///< a record in the middle has a wrong checksum
};

/// The records of a file: the content of each, as a part of `bytes`.
struct record_list {
  std::vector<std::span<std::byte const>> records;
  std::uint64_t valid_bytes = 0;  ///< the end of the last complete record
  tensorboard::tail tail = tail::whole;
};

/// Splits a file into records, up to its end or the first incomplete record. Never reads beyond `bytes`, whatever
/// lengths the records contain.
[[nodiscard]] record_list split_records(std::span<std::byte const> bytes);

/// All events of a file in order; an incomplete record at the end is ignored. Throws format_error for a corrupt record
/// in the middle.
[[nodiscard]] std::vector<event> parse_events(std::span<std::byte const> bytes, std::string const& path);
[[nodiscard]] std::vector<event> read_events(std::string const& path);

struct writer_options {
  int flush_every = 1;            ///< events; 0: only flush() writes
  std::function<double()> clock;  ///< seconds since 1970; the system's by default
  file_system* files = nullptr;
  void validate() const { expect_number("formats::tensorboard", ".flush_every", flush_every, not_negative); }
};

/// Writes scalars for TensorBoard.
///
/// Every event is written in one call, so a crash, or a reader at that moment, finds at most one incomplete record.
///
/// Threads  one owner; one process per file.
/// Errors   config_error for invalid options; io_error (pending events are lost, the file stays valid); format_error if
///          an existing file to be continued is corrupt in the middle.
class writer {
 public:
  /// Opens a new file, or continues one, after removing an incomplete record at its end.
  explicit writer(std::string const& path, writer_options options = {});
  writer(writer&&) noexcept = default;
  ~writer();

  void add(std::int64_t step, std::span<scalar const> scalars);
  void add(std::int64_t step, std::initializer_list<scalar> scalars) {
    add(step, std::span(scalars.begin(), scalars.size()));
  }
  void add(std::int64_t step, std::string tag, double value) {
    add(step, {{std::move(tag), static_cast<float>(value)}});
  }
  /// Tells TensorBoard to discard what was logged for `step` and later: call it when a run resumes there.
  void restart(std::int64_t step);
  /// Passes pending events to the operating system (not to the device).
  void flush();

  [[nodiscard]] std::string const& path() const noexcept { return file_.path(); }

 private:
  void append(event what);

  writer_options options_;
  file file_;
  std::string pending_;
  int pending_events_ = 0;
  std::uint64_t written_ = 0;  // bytes of whole records in the file
};

/// A unique name that TensorBoard recognises in a log directory, in the order of time:
/// "events.out.tfevents.<seconds>.<microseconds>.<host>.<process>".
[[nodiscard]] std::string event_file_name();

}  // namespace trireme::formats::tensorboard

#ifndef TRIREME_FORMATS_DETAIL_TENSORBOARD_EVENTS_INCLUDED
#define TRIREME_FORMATS_DETAIL_TENSORBOARD_EVENTS_INCLUDED

// ---- trireme/formats/detail/tensorboard_events.hpp
#include <algorithm>
#include <bit>
#include <optional>

#ifndef TRIREME_FORMATS_DETAIL_PROTOBUF_INCLUDED
#define TRIREME_FORMATS_DETAIL_PROTOBUF_INCLUDED

// ---- trireme/formats/detail/protobuf.hpp
/// Protocol buffers: the fields of a message, one by one. TensorBoard's events and ONNX are such messages.
namespace trireme::formats::protobuf {

/// No reader takes a message of this size: lengths are 32-bit signed integers in theirs.
inline constexpr std::uint64_t message_limit = std::uint64_t{1} << 31;

enum class wire : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <class Integer>
void append_little_endian(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}
template <class Integer>
Integer little_endian(std::span<std::byte const> from) noexcept {
  Integer out = 0;
  for (std::size_t i = 0; i < sizeof out; ++i)
    out |= static_cast<Integer>(std::to_integer<Integer>(from[i]) << (8 * i));
  return out;
}

inline void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
inline void append_key(std::string& out, std::uint32_t number, wire kind) {
  append_varint(out, number << 3 | static_cast<std::uint32_t>(kind));
}
/// The beginning of a field of bytes, which follow: a message that does not fit into memory is written piece by piece.
inline void append_length(std::string& out, std::uint32_t number, std::uint64_t bytes) {
  append_key(out, number, wire::bytes);
  append_varint(out, bytes);
}
inline void append_bytes(std::string& out, std::uint32_t number, std::string_view content) {
  append_length(out, number, content.size());
  out += content;
}
/// A field of an integer; negative ones take ten bytes, as the format has it.
inline void append_integer(std::string& out, std::uint32_t number, std::int64_t value) {
  append_key(out, number, wire::varint);
  append_varint(out, static_cast<std::uint64_t>(value));
}
inline void append_float(std::string& out, std::uint32_t number, float value) {
  append_key(out, number, wire::fixed32);
  append_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

/// Reads the fields of a message one by one.
class message_reader {
 public:
  struct message_field {
    std::uint32_t number = 0;
    wire kind = wire::varint;
    std::uint64_t value = 0;             // of varint, fixed64, fixed32
    std::span<std::byte const> content;  // of bytes
    std::uint64_t offset = 0;
  };

  message_reader(std::span<std::byte const> bytes, std::string const& path, std::uint64_t offset)
      : left_(bytes), path_(path), offset_(offset) {}

  [[nodiscard]] bool next(message_field& out) {
    if (left_.empty()) return false;
    auto const key = read_varint();
    out = {};
    out.number = static_cast<std::uint32_t>(key >> 3);
    out.kind = static_cast<wire>(key & 7);
    if (key >> 32 != 0 || out.number == 0) fail("a field without a number");
    switch (out.kind) {
      case wire::varint:
        out.value = read_varint();
        break;
      case wire::fixed64:
        out.value = little_endian<std::uint64_t>(take(8));
        break;
      case wire::fixed32:
        out.value = little_endian<std::uint32_t>(take(4));
        break;
      case wire::bytes: {
        auto const size = read_varint();
        out.offset = offset_;
        out.content = take(size);
        break;
      }
      default:
        fail("a field of unknown wire type");
    }
    return true;
  }
  [[noreturn]] void fail(std::string_view reason) const { throw format_error(path_, offset_, reason); }

 private:
  [[nodiscard]] std::span<std::byte const> take(std::uint64_t size) {
    if (size > left_.size()) fail("a field ends beyond its message");
    auto const out = left_.first(size);
    left_ = left_.subspan(out.size());
    offset_ += size;
    return out;
  }
  [[nodiscard]] std::uint64_t read_varint() {
    std::uint64_t out = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      auto const byte = std::to_integer<std::uint64_t>(take(1)[0]);
      if (shift == 63 && byte > 1) break;
      out |= (byte & 0x7f) << shift;
      if (byte < 0x80) return out;
    }
    fail("an integer of more than 64 bits");
  }

  std::span<std::byte const> left_;
  std::string const& path_;
  std::uint64_t offset_;
};

inline std::string text_of(std::span<std::byte const> content) {
  return {reinterpret_cast<char const*>(content.data()), content.size()};
}

/// Checks that a field has the required type. Unknown fields are skipped; known ones of another type are an error.
inline bool is(message_reader const& reader, message_reader::message_field const& it, std::uint32_t number, wire kind) {
  if (it.number != number) return false;
  if (it.kind != kind) reader.fail("a field of the wrong wire type");
  return true;
}

}  // namespace trireme::formats::protobuf

#endif  // TRIREME_FORMATS_DETAIL_PROTOBUF_INCLUDED

// ---- trireme/formats/detail/tensorboard_events.hpp (goes on)
namespace trireme::formats::tensorboard {

namespace detail {

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
namespace field {
inline constexpr std::uint32_t event_wall_time = 1;
inline constexpr std::uint32_t event_step = 2;
inline constexpr std::uint32_t event_file_version = 3;
inline constexpr std::uint32_t event_summary = 5;
inline constexpr std::uint32_t event_session_log = 7;
inline constexpr std::uint32_t summary_value = 1;
inline constexpr std::uint32_t value_tag = 1;
inline constexpr std::uint32_t value_simple_value = 2;
inline constexpr std::uint32_t session_status = 1;
}  // namespace field
inline constexpr std::uint64_t session_start = 1;

using namespace protobuf;  // NOLINT(google-build-using-namespace)

inline std::optional<scalar> decode_value(std::span<std::byte const> content, std::string const& path,
                                          std::uint64_t offset) {
  message_reader reader(content, path, offset);
  scalar out;
  bool has_number = false;
  for (message_reader::message_field it; reader.next(it);) {
    if (is(reader, it, field::value_tag, wire::bytes)) out.tag = text_of(it.content);
    if (is(reader, it, field::value_simple_value, wire::fixed32)) {
      out.value = std::bit_cast<float>(static_cast<std::uint32_t>(it.value));
      has_number = true;
    }
  }
  return has_number ? std::optional(out) : std::nullopt;
}

/// The masked checksum in records.
inline std::uint32_t masked_crc(std::span<std::byte const> content) noexcept {
  return std::rotr(crc32c(content), 15) + 0xa282ead8U;
}

inline bool only_zeros(std::span<std::byte const> content) noexcept {
  return std::all_of(content.begin(), content.end(), [](auto byte) { return byte == std::byte{}; });
}

}  // namespace detail

inline std::string encode(event const& what) {
  using namespace detail;
  std::string out;
  append_key(out, field::event_wall_time, wire::fixed64);
  append_little_endian(out, std::bit_cast<std::uint64_t>(what.wall_time));
  if (what.step != 0) {
    append_key(out, field::event_step, wire::varint);
    append_varint(out, static_cast<std::uint64_t>(what.step));
  }
  if (!what.file_version.empty()) append_bytes(out, field::event_file_version, what.file_version);
  if (!what.scalars.empty()) {
    std::string summary;
    for (auto const& each : what.scalars) {
      std::string value;
      append_bytes(value, field::value_tag, each.tag);
      append_key(value, field::value_simple_value, wire::fixed32);
      append_little_endian(value, std::bit_cast<std::uint32_t>(each.value));
      append_bytes(summary, field::summary_value, value);
    }
    append_bytes(out, field::event_summary, summary);
  }
  if (what.restart) {
    std::string session;
    append_key(session, field::session_status, wire::varint);
    append_varint(session, session_start);
    append_bytes(out, field::event_session_log, session);
  }
  return out;
}

inline event decode(std::span<std::byte const> bytes, std::string const& path, std::uint64_t offset) {
  using namespace detail;
  message_reader reader(bytes, path, offset);
  event out;
  for (message_reader::message_field it; reader.next(it);) {
    if (is(reader, it, field::event_wall_time, wire::fixed64)) out.wall_time = std::bit_cast<double>(it.value);
    if (is(reader, it, field::event_step, wire::varint)) out.step = static_cast<std::int64_t>(it.value);
    if (is(reader, it, field::event_file_version, wire::bytes)) out.file_version = text_of(it.content);
    if (is(reader, it, field::event_summary, wire::bytes)) {
      message_reader summary(it.content, path, it.offset);
      for (message_reader::message_field value; summary.next(value);) {
        if (!is(summary, value, field::summary_value, wire::bytes)) continue;
        if (auto number = decode_value(value.content, path, value.offset)) out.scalars.push_back(std::move(*number));
      }
    }
    if (is(reader, it, field::event_session_log, wire::bytes)) {
      message_reader session(it.content, path, it.offset);
      for (message_reader::message_field status; session.next(status);) {
        if (is(session, status, field::session_status, wire::varint)) out.restart = status.value == session_start;
      }
    }
  }
  return out;
}

inline std::string frame(std::string_view content) {
  std::string out;
  out.reserve(content.size() + 16);
  detail::append_little_endian(out, std::uint64_t{content.size()});
  detail::append_little_endian(out, detail::masked_crc(std::as_bytes(std::span(out).first(8))));
  out += content;
  detail::append_little_endian(out, detail::masked_crc(std::as_bytes(std::span(content))));
  return out;
}

inline record_list split_records(std::span<std::byte const> bytes) {
  using namespace detail;
  record_list out;
  while (!bytes.empty()) {
    // A crash leaves a record that ends beyond the file, or whose last bytes were not written: zeros up to the end.
    out.tail = tail::torn;
    if (bytes.size() < 12) break;
    auto const length = little_endian<std::uint64_t>(bytes);
    if (little_endian<std::uint32_t>(bytes.subspan(8)) != masked_crc(bytes.first(8))) {
      out.tail = only_zeros(bytes.subspan(12)) ? tail::torn : tail::corrupt;
      break;
    }
    if (length > bytes.size() - 12 || bytes.size() - 12 - length < 4) break;
    auto const content = bytes.subspan(12, static_cast<std::size_t>(length));
    auto const rest = bytes.subspan(12 + content.size() + 4);
    auto const good = little_endian<std::uint32_t>(bytes.subspan(12 + content.size())) == masked_crc(content);
    if (!good) {
      out.tail = only_zeros(rest) ? tail::torn : tail::corrupt;
      break;
    }
    out.tail = tail::whole;
    out.records.push_back(content);
    out.valid_bytes += 16 + content.size();
    bytes = rest;
  }
  return out;
}

inline std::vector<event> parse_events(std::span<std::byte const> bytes, std::string const& path) {
  auto const list = split_records(bytes);
  if (list.tail == tail::corrupt) throw format_error(path, list.valid_bytes, "a record with a wrong checksum");
  std::vector<event> out;
  for (auto const record : list.records) {
    out.push_back(decode(record, path, static_cast<std::uint64_t>(record.data() - bytes.data())));
  }
  return out;
}

inline std::vector<event> read_events(std::string const& path) { return parse_events(read_file(path), path); }

}  // namespace trireme::formats::tensorboard

#endif  // TRIREME_FORMATS_DETAIL_TENSORBOARD_EVENTS_INCLUDED

// ---- trireme/formats/tensorboard.hpp (goes on)
#ifndef TRIREME_FORMATS_DETAIL_TENSORBOARD_WRITER_INCLUDED
#define TRIREME_FORMATS_DETAIL_TENSORBOARD_WRITER_INCLUDED

// ---- trireme/formats/detail/tensorboard_writer.hpp
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>

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

#endif  // TRIREME_FORMATS_DETAIL_TENSORBOARD_WRITER_INCLUDED
