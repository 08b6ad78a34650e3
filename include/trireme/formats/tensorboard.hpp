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

/// What an event file holds: one event a record. Members that a file may have and we do not know are left out.
struct event {
  double wall_time = 0;  ///< seconds since 1970
  std::int64_t step = 0;
  std::string file_version;  ///< "brain.Event:2" in the first event, else empty
  std::vector<scalar> scalars;
  bool restart = false;  ///< the session starts (again) at `step`: what was logged from there on is void
  friend bool operator==(event const&, event const&) = default;
};

/// The bytes of an event: a protocol buffer of type tensorflow.Event.
[[nodiscard]] std::string encode(event const& what);

/// The event that bytes of a file hold. Throws format_error(path, offset + byte, reason).
[[nodiscard]] event decode(std::span<std::byte const> bytes, std::string const& path, std::uint64_t offset = 0);

/// Bytes as a record: length, checksum of the length, bytes, checksum of the bytes.
[[nodiscard]] std::string frame(std::string_view content);

/// How the records of a file end.
enum class tail {
  whole,    ///< with a whole record
  torn,     ///< within a record, or in zeros: what a crash or power loss leaves behind
  corrupt,  ///< a record in the middle has a wrong checksum
};

/// The records of a file: the content of each, as a part of `bytes`.
struct record_list {
  std::vector<std::span<std::byte const>> records;
  std::uint64_t valid_bytes = 0;  ///< where the last whole record ends
  tensorboard::tail tail = tail::whole;
};

/// Takes a file apart, up to its end or the first record that is not whole. Never reads beyond `bytes`, whatever
/// lengths they claim.
[[nodiscard]] record_list split_records(std::span<std::byte const> bytes);

/// All events of a file in order; a torn tail is left out. Throws format_error for a corrupt record in the middle.
[[nodiscard]] std::vector<event> parse_events(std::span<std::byte const> bytes, std::string const& path);
[[nodiscard]] std::vector<event> read_events(std::string const& path);

struct writer_options {
  int flush_every = 1;            ///< events; 0 leaves it to flush()
  std::function<double()> clock;  ///< seconds since 1970; the system's by default
  file_system* files = nullptr;
  void validate() const { expect_number("formats::tensorboard", ".flush_every", flush_every, not_negative); }
};

/// Writes scalars for TensorBoard.
///
/// Every event goes out whole in one write, so a reader that looks meanwhile, or a crash, finds at most one record
/// torn.
///
/// Threads  one owner; one process a file.
/// Errors   config_error for options that cannot be meant; io_error (what was pending is lost then, the file stays
/// whole); format_error when an existing file to go on with is corrupt in the middle.
class writer {
 public:
  /// Opens a file: a new one, or one to go on with, whose torn tail is cut off first.
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
  /// Tells TensorBoard to forget what was logged for `step` and later: call it when a run resumes there.
  void restart(std::int64_t step);
  /// Hands what is pending to the system (not to the device).
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

/// A name that TensorBoard finds in a log directory, unlike any other:
/// "events.out.tfevents.<seconds>.<host>.<process>".
[[nodiscard]] std::string event_file_name();

}  // namespace trireme::formats::tensorboard

#include "trireme/formats/detail/tensorboard_events.hpp"
#include "trireme/formats/detail/tensorboard_writer.hpp"
