#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/data/text_tokens.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/token_shards.hpp"
#include "trireme/formats/file.hpp"

#ifdef TRAIN_GPT_UTF8PROC
#include "trireme/formats/tokenizer.hpp"
#endif
#ifdef TRAIN_GPT_SENTENCEPIECE
#include "trireme/formats/sentencepiece.hpp"
#endif

/// A run's tokens: bytes, those of a tokenizer's file, or numbers of which no text is known.
class token_choice {
 public:
  /// @param path  of a tokenizer.json, or of a .model of sentencepiece; empty: bytes. Throws what reading it throws,
  ///              and config_error if this program was built without the library for it.
  explicit token_choice(std::string const& path) {
    if (path.empty()) return;
    content_ = trireme::formats::read_text(path, std::uint64_t{1} << 28);
    if (path.ends_with(".model")) {
      file_name_ = "tokenizer.model";
#ifdef TRAIN_GPT_SENTENCEPIECE
      take(trireme::formats::sentencepiece::parse(content_, path),
           [](auto const& words, std::string_view text) { return words.encode(text); });
#else
      fail("sentencepiece");
#endif
    } else {
#ifdef TRAIN_GPT_UTF8PROC
      take(trireme::formats::tokenizer::parse(content_, path), [](auto const& words, std::string_view text) {
        return words.encode(text, trireme::formats::special_tokens::without);
      });
#else
      fail("utf8proc");
#endif
    }
    trireme::sha256 hash;
    hash.update(std::as_bytes(std::span(content_)));
    sha256_ = hash.hexadecimal();
  }

  /// Tokens from 0 to vocabulary - 1 of shards without a tokenizer.
  [[nodiscard]] static token_choice numbers(std::int64_t vocabulary) {
    token_choice out{std::string()};
    out.vocabulary_ = vocabulary;
    out.is_text_ = false;
    return out;
  }

  /// Whether a text can be encoded, and tokens decoded.
  [[nodiscard]] bool is_text() const noexcept { return is_text_; }
  [[nodiscard]] bool bytes() const noexcept { return content_.empty(); }
  [[nodiscard]] std::string const& content() const noexcept { return content_; }  ///< of the file
  [[nodiscard]] char const* file_name() const noexcept { return file_name_; }     ///< its name in runs and models
  [[nodiscard]] std::string const& sha256() const noexcept { return sha256_; }
  [[nodiscard]] std::string of_what() const {
    return !is_text_ ? trireme::text("numbers below ", vocabulary_)
           : bytes() ? "bytes"
                     : trireme::text("those of a tokenizer with the SHA-256 ", sha256_.substr(0, 12), "...");
  }
  [[nodiscard]] std::int64_t vocabulary() const noexcept { return vocabulary_; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const { return encode_(text); }
  [[nodiscard]] std::string decode(std::span<std::int32_t const> tokens) const { return decode_(tokens); }

 private:
  [[noreturn, maybe_unused]] static void fail(std::string_view library) {
    throw trireme::config_error(trireme::text("this --tokenizer needs ", library,
                                              ", and this program was built without it; install lib", library,
                                              "-dev and build again (scripts/train --tokenizer does both)"));
  }
  template <class Tokenizer, class Encode>
  void take(Tokenizer read, Encode encode) {
    auto const words = std::make_shared<Tokenizer const>(std::move(read));
    vocabulary_ = words->vocabulary();
    encode_ = [words, encode](std::string_view text) { return encode(*words, text); };
    decode_ = [words](std::span<std::int32_t const> tokens) { return words->decode(tokens); };
  }

  std::string content_, sha256_;
  char const* file_name_ = "tokenizer.json";
  std::int64_t vocabulary_ = 256;
  bool is_text_ = true;
  std::function<std::vector<std::int32_t>(std::string_view)> encode_ = [](std::string_view text) {
    auto const* const letters = reinterpret_cast<unsigned char const*>(text.data());
    return std::vector<std::int32_t>(letters, letters + text.size());
  };
  std::function<std::string(std::span<std::int32_t const>)> decode_ = [](std::span<std::int32_t const> tokens) {
    std::string out;
    for (auto const token : tokens) out += static_cast<char>(token);
    return out;
  };
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
  std::variant<trireme::data::token_windows, trireme::data::held_out_windows, trireme::data::packed_windows,
               trireme::data::token_shard_windows, trireme::data::subset>
      of_;
};

/// The two parts of a run's conversations, and what is to be told about all of them.
struct chat_split {
  trireme::data::subset training, held_out;
  struct counts {
    std::int64_t conversations = 0, targets = 0, cut = 0, left_out = 0;
  } of{};
};

/// The two parts of a run's text.
class run_text {
 public:
  /// @param parts  in bytes.
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

  explicit run_text(trireme::data::shard_split const& parts)
      : training_(parts.training), shards_(parts.held_out), tokens_a_byte_(0) {}

  explicit run_text(chat_split const& parts)
      : training_(parts.training), chats_(parts.held_out), chat_counts_(parts.of), tokens_a_byte_(0) {}

  [[nodiscard]] text_windows const& training() const noexcept { return training_; }
  /// The first windows of the held-out text, of `most` tokens in total or at least one window.
  [[nodiscard]] text_windows held_out(std::int64_t most) const {
    if (chats_) {
      auto const count = std::min(chats_->size(), std::max<std::int64_t>(1, most / chats_->input_shape().size()));
      std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
      std::iota(ids.begin(), ids.end(), std::int64_t{0});
      return text_windows(trireme::data::subset(*chats_, std::move(ids)));
    }
    if (shards_) return text_windows(shards_->first(std::max<std::int64_t>(1, most / shards_->description().context)));
    auto range = held_out_->description();
    auto const windows = std::max<std::int64_t>(1, most / range.context);
    if (!packed_.empty()) return text_windows(packed_[0].first(windows));
    range.last_byte = range.first_byte + std::min(held_out_->size(), windows) * range.context - 1;
    return text_windows(range.open_held_out());
  }
  /// Of conversations; else nothing.
  [[nodiscard]] std::optional<chat_split::counts> const& chats() const noexcept { return chat_counts_; }
  /// In the held-out text; 0 if it is not known, of shards and conversations.
  [[nodiscard]] double tokens_a_byte() const noexcept { return tokens_a_byte_; }

 private:
  text_windows training_;
  std::optional<trireme::data::held_out_windows> held_out_;  // of a text
  std::optional<trireme::data::token_shard_windows> shards_;
  std::optional<trireme::data::subset> chats_;
  std::optional<chat_split::counts> chat_counts_;
  std::vector<trireme::data::packed_windows> packed_;  // one, or none if tokens are bytes
  double tokens_a_byte_ = 1;
};
