#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/data/detail/stable_file.hpp"
#include "trireme/data/detail/training_part.hpp"

namespace trireme::data {

class token_windows;
class held_out_windows;

/// A text file whose bytes are the tokens (a vocabulary of 256), or a range of its bytes.
///
/// open() returns windows to train on, open_held_out() windows to evaluate on; split_text() gives both, disjoint. Only
/// whole windows are used: fewer than `context` bytes at the end of the range may stay unused.
///
/// Errors   open() and open_held_out() throw io_error if the file is missing, empty, not readable or not a regular
///          file, config_error if the range is not within the file or is too short for one window.
struct token_file {
  std::string path;
  std::int64_t context = 256;   ///< tokens of a window
  std::int64_t first_byte = 0;  ///< the beginning of the range
  std::int64_t last_byte = -1;  ///< the last byte of the range; -1: the last byte of the file
  [[nodiscard]] token_windows open() const;
  [[nodiscard]] held_out_windows open_held_out() const;
  friend bool operator==(token_file const&, token_file const&) = default;
};

/// "trireme::data::token_file{.path = "text", .context = 256, .first_byte = 0, .last_byte = -1}"
[[nodiscard]] inline std::string to_string(token_file const& file) {
  return text("trireme::data::token_file{.path = \"", file.path, "\", .context = ", file.context,
              ", .first_byte = ", file.first_byte, ", .last_byte = ", file.last_byte, "}");
}

namespace detail {

/// The common part of both kinds of windows: a checked range of a file, and the arithmetic on it.
class byte_windows {
 public:
  /// A window needs `context + more` bytes.
  byte_windows(token_file file, std::int64_t more) : file_(std::move(file)) {
    if (file_.context < 1) throw refusal(text(".context = ", file_.context, ", but at least 1 is needed"));
    open_ = std::make_shared<stable_file const>(file_.path, who);
    auto const last = file_.last_byte == -1 ? open_->size() - 1 : file_.last_byte;
    if (file_.first_byte < 0 || last >= open_->size() || last < file_.first_byte) {
      throw refusal(text("bytes ", file_.first_byte, " to ", last, " are not a range of the file, which has ",
                         how_many(open_->size(), "byte")));
    }
    length_ = last - file_.first_byte + 1;
    if (length_ - more < file_.context) {
      throw refusal(text("the range has ", how_many(length_, "byte"), ", but one window of .context = ", file_.context,
                         " needs ", more == 0 ? "" : "one more than ",
                         "that many: choose a shorter context or a longer text"));
    }
  }

  [[nodiscard]] token_file const& description() const noexcept { return file_; }
  [[nodiscard]] std::int64_t context() const noexcept { return file_.context; }
  [[nodiscard]] std::int64_t length() const noexcept { return length_; }
  [[nodiscard]] std::int64_t file_bytes() const noexcept { return open_->size(); }

  /// Calls take(first, last) with the bytes of each window and the `more` bytes after it; they are valid during the
  /// call.
  template <class Take>
  void for_each_window(std::span<std::int64_t const> ids, std::int64_t more, Take&& take) const {
    constexpr std::int64_t on_the_stack = 8192;
    unsigned char small[on_the_stack];
    std::vector<unsigned char> large;
    auto const bytes = file_.context + more;
    if (bytes > on_the_stack) large.resize(static_cast<std::size_t>(bytes));
    std::span const window(large.empty() ? small : large.data(), static_cast<std::size_t>(bytes));
    for (auto const id : ids) {
      open_->read(file_.first_byte + id * file_.context, window);
      take(window.data(), window.data() + window.size());
    }
  }

 private:
  static constexpr char const* who = "trireme::data::token_file";
  [[nodiscard]] config_error refusal(std::string const& reason) const {
    return config_error(text(who, ": ", file_.path, ": ", reason));
  }
  token_file file_;
  std::shared_ptr<stable_file const> open_;
  std::int64_t length_ = 0;
};

}  // namespace detail

/// Windows of a text to train on: window s begins at byte first_byte + s * context, and each token's target is the
/// byte after it.
///
/// Shapes  inputs (T) int32: bytes [b, b + T) as numbers 0 to 255; targets (T) int32: bytes [b + 1, b + T + 1).
/// Bytes    the file is not loaded: each window is read when it is needed, mostly from the system's page cache, which
///          all ranks of a machine share.
/// Threads  read() is const. A copy shares the open file.
/// Errors   read() throws io_error if the file was truncated since, or cannot be read.
/// @models trireme::dataset
class token_windows {
 public:
  explicit token_windows(token_file file) : text_(std::move(file), 1) {}

  [[nodiscard]] token_file const& description() const noexcept { return text_.description(); }
  [[nodiscard]] std::int64_t size() const noexcept { return (text_.length() - 1) / text_.context(); }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {text_.context()}; }
  [[nodiscard]] shape target_shape() const { return {text_.context()}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    text_.for_each_window(ids, 1, [&](auto const* first, auto const* last) {
      in = std::copy(first, last - 1, in);
      out = std::copy(first + 1, last, out);
    });
  }

 private:
  detail::byte_windows text_;
};

/// Windows of a text to evaluate on: consecutive, without overlap, and nothing outside a window is used.
///
/// Shapes   inputs (T) int32: the bytes of the window; targets (T) int32: target t is byte t + 1 of the window, and the
///          last target is -1, which losses ignore. So a window has T - 1 predictions.
/// Threads  read() is const. A copy shares the open file.
/// Errors  as token_windows.
/// @models trireme::dataset          @see token_windows, split
class held_out_windows {
 public:
  explicit held_out_windows(token_file file) : text_(std::move(file), 0) {}

  [[nodiscard]] token_file const& description() const noexcept { return text_.description(); }
  [[nodiscard]] std::int64_t size() const noexcept { return text_.length() / text_.context(); }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {text_.context()}; }
  [[nodiscard]] shape target_shape() const { return {text_.context()}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    text_.for_each_window(ids, 0, [&](auto const* first, auto const* last) {
      in = std::copy(first, last, in);
      out = std::copy(first + 1, last, out);
      *out++ = -1;
    });
  }

 private:
  detail::byte_windows text_;
};

inline token_windows token_file::open() const { return token_windows(*this); }
inline held_out_windows token_file::open_held_out() const { return held_out_windows(*this); }

/// A text split in two, with the numbers for a run's summary.
struct token_split {
  token_windows training;
  held_out_windows held_out;
  std::int64_t bytes = 0;           ///< of the file
  std::int64_t held_out_begin = 0;  ///< the first held-out byte
};

/// Splits a text: the first part to train on, the rest held out to evaluate on.
///
/// The split is at floor(bytes * (1 - held_out_fraction)), with the fraction rounded to millionths, so that 0.1 splits
/// a file at exactly floor(bytes * 9 / 10). No byte is in both parts, and the last training target is before the split.
///
/// Errors  throws config_error if the fraction is not in (0, 1) or a part is too short; io_error as token_file.
[[nodiscard]] inline token_split split_text(std::string const& path, std::int64_t context,
                                            double held_out_fraction = 0.1) {
  detail::training_part const part(held_out_fraction, "trireme::data::split_text");
  auto const bytes = detail::stable_file(path, "trireme::data::split_text").size();
  auto const begin = part.of(bytes);
  if (begin < 1)
    throw config_error(text("trireme::data::split_text: ", path, ": ", how_many(bytes, "byte"),
                            agreeing(bytes, " leaves", " leave"), " none to train on"));
  return {token_windows({.path = path, .context = context, .first_byte = 0, .last_byte = begin - 1}),
          held_out_windows({.path = path, .context = context, .first_byte = begin, .last_byte = bytes - 1}), bytes,
          begin};
}

}  // namespace trireme::data
