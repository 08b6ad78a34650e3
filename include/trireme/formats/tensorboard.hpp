#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/expect.hpp"
#include "trireme/formats/file.hpp"

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

#include "trireme/formats/detail/tensorboard_events.hpp"
#include "trireme/formats/detail/tensorboard_writer.hpp"
