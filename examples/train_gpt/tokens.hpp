#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/data/text_tokens.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/formats/file.hpp"

#ifdef TRAIN_GPT_UTF8PROC
#include "trireme/formats/tokenizer.hpp"
#endif

/// What a run's tokens are: bytes, or those of a tokenizer's file.
class token_choice {
 public:
  /// @param path  of a tokenizer.json; bytes if empty. Throws what reading it throws, and config_error where this
  /// program was built without utf8proc.
  explicit token_choice(std::string const& path) {
    if (path.empty()) return;
#ifdef TRAIN_GPT_UTF8PROC
    content_ = trireme::formats::read_text(path, std::uint64_t{1} << 28);
    words_ = std::make_shared<trireme::formats::tokenizer const>(trireme::formats::tokenizer::parse(content_, path));
    trireme::sha256 hash;
    hash.update(std::as_bytes(std::span(content_)));
    sha256_ = hash.hexadecimal();
#else
    throw trireme::config_error(
        "--tokenizer needs utf8proc, and this program was built without it; install libutf8proc-dev and build again "
        "(scripts/train --tokenizer does both)");
#endif
  }

  [[nodiscard]] bool bytes() const noexcept { return content_.empty(); }
  [[nodiscard]] std::string const& content() const noexcept { return content_; }  ///< of the file
  [[nodiscard]] std::string const& sha256() const noexcept { return sha256_; }
  [[nodiscard]] std::string of_what() const {
    return bytes() ? "bytes" : trireme::text("those of a tokenizer with the SHA-256 ", sha256_.substr(0, 12), "...");
  }
  [[nodiscard]] std::int64_t vocabulary() const {
#ifdef TRAIN_GPT_UTF8PROC
    if (words_) return words_->vocabulary();
#endif
    return 256;
  }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const {
#ifdef TRAIN_GPT_UTF8PROC
    if (words_) return words_->encode(text, trireme::formats::special_tokens::without);
#endif
    return {reinterpret_cast<unsigned char const*>(text.data()),
            reinterpret_cast<unsigned char const*>(text.data()) + text.size()};
  }
  [[nodiscard]] std::string decode(std::span<std::int32_t const> tokens) const {
#ifdef TRAIN_GPT_UTF8PROC
    if (words_) return words_->decode(tokens);
#endif
    std::string out;
    for (auto const token : tokens) out += static_cast<char>(token);
    return out;
  }

 private:
  std::string content_, sha256_;
#ifdef TRAIN_GPT_UTF8PROC
  std::shared_ptr<trireme::formats::tokenizer const> words_;
#endif
};

/// Windows of a run's text, of bytes or of other tokens.
/// @models trireme::dataset
class text_windows {
 public:
  template <class Windows>
  explicit text_windows(Windows windows) : of_(std::move(windows)) {}

  [[nodiscard]] std::int64_t size() const {
    return std::visit([](auto const& windows) { return windows.size(); }, of_);
  }
  [[nodiscard]] trireme::dtype input_type() const { return trireme::dtype::i32; }
  [[nodiscard]] trireme::dtype target_type() const { return trireme::dtype::i32; }
  [[nodiscard]] trireme::shape input_shape() const {
    return std::visit([](auto const& windows) { return windows.input_shape(); }, of_);
  }
  [[nodiscard]] trireme::shape target_shape() const { return input_shape(); }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    std::visit([&](auto const& windows) { windows.read(ids, inputs, targets); }, of_);
  }

 private:
  std::variant<trireme::data::token_windows, trireme::data::held_out_windows, trireme::data::packed_windows> of_;
};

/// The two parts of a run's text.
class run_text {
 public:
  /// @param parts  of bytes.
  run_text(trireme::data::token_split const& parts, token_choice const& tokens)
      : training_(parts.training), held_out_(parts.held_out) {
    if (tokens.bytes()) return;
    auto const of = [&](trireme::data::token_file const& range) {
      return trireme::data::text_tokens{
          .path = range.path, .context = range.context, .first_byte = range.first_byte, .last_byte = range.last_byte};
    };
    auto const encode = [&](std::string_view text) { return tokens.encode(text); };
    auto const& out = parts.held_out.description();
    training_ = text_windows(of(parts.training.description()).open(encode));
    packed_.push_back(of(out).open_held_out(encode));
    tokens_a_byte_ =
        static_cast<double>(packed_[0].token_count()) / static_cast<double>(parts.bytes - parts.held_out_begin);
  }

  [[nodiscard]] text_windows const& training() const noexcept { return training_; }
  /// The first windows of what is held out, of `most` tokens or at least one window.
  [[nodiscard]] text_windows held_out(std::int64_t most) const {
    auto range = held_out_.description();
    auto const windows = std::max<std::int64_t>(1, most / range.context);
    if (!packed_.empty()) return text_windows(packed_[0].first(windows));
    range.last_byte = range.first_byte + std::min(held_out_.size(), windows) * range.context - 1;
    return text_windows(range.open_held_out());
  }
  /// Of what is held out.
  [[nodiscard]] double tokens_a_byte() const noexcept { return tokens_a_byte_; }

 private:
  text_windows training_;
  trireme::data::held_out_windows held_out_;
  std::vector<trireme::data::packed_windows> packed_;  // one, or none where tokens are bytes
  double tokens_a_byte_ = 1;
};
