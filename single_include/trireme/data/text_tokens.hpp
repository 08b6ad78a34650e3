// Trireme 0.1.0: trireme/data/text_tokens.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 337e87dbf53c0b7962d80561ec74846faf7b63061009136d0a1ba4b2858dccd4
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/data/text_tokens.hpp
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {

/// Turns text into tokens: any callable, for example a lambda around formats::tokenizer.
template <class E>
concept text_encoder = requires(E const& encode, std::string_view text) {
  { encode(text) } -> std::convertible_to<std::vector<std::int32_t>>;
};

class packed_windows;

/// A text file, or a range of its bytes, as the tokens that an encoder makes of it.
///
/// open() returns windows to train on, open_held_out() windows to evaluate on. Documents are packed: they follow each
/// other without a gap, each with the separator after it, and a window may contain the end of one and the beginning of
/// the next. With `nn::attend{.tokens = {.separator = s}}` they do not attend to each other. The token after a
/// separator cannot be predicted from the document before it, so its target is -1, which losses ignore.
///
///     data::text_tokens{.path = "text", .document_end = "\n\n", .separator = *words.id_of("<|endoftext|>")}
///         .open([&](std::string_view text) { return words.encode(text, formats::special_tokens::without); });
///
/// A character that crosses an end of the range is left out.
///
/// Errors   config_error if the range is not within the file or has too few tokens for one window; io_error as
///          token_file; exceptions of the encoder.
/// @see token_file, whose tokens are bytes and which is not loaded into memory
struct text_tokens {
  std::string path;
  std::int64_t context = 256;   ///< tokens of a window
  std::int64_t first_byte = 0;  ///< the beginning of the range
  std::int64_t last_byte = -1;  ///< the last byte of the range; -1: the last byte of the file
  std::string document_end{};   ///< the text between two documents, part of neither; empty: there is one document
  std::int32_t separator = -1;  ///< the token after each document; -1: none
  template <text_encoder Encode>
  [[nodiscard]] packed_windows open(Encode const& encode) const;
  template <text_encoder Encode>
  [[nodiscard]] packed_windows open_held_out(Encode const& encode) const;
  friend bool operator==(text_tokens const&, text_tokens const&) = default;
};

namespace detail {

/// The characters of a text file that are completely within a range.
[[nodiscard]] inline std::string characters_of(text_tokens const& from) {
  static constexpr char const* who = "trireme::data::text_tokens";
  stable_file const file(from.path, who);
  auto const last = from.last_byte == -1 ? file.size() - 1 : from.last_byte;
  if (from.first_byte < 0 || last >= file.size() || last < from.first_byte) {
    throw config_error(text(who, ": ", from.path, ": bytes ", from.first_byte, " to ", last,
                            " are not a range of the file, which has ", how_many(file.size(), "byte")));
  }
  std::string out(static_cast<std::size_t>(last - from.first_byte + 1), '\0');
  file.read(from.first_byte, {reinterpret_cast<unsigned char*>(out.data()), out.size()});
  auto const continues = [&](std::size_t at) { return (static_cast<unsigned char>(out[at]) & 0xc0) == 0x80; };
  auto end = out.size();
  while (end > 0 && out.size() - end < 3 && continues(end - 1)) --end;
  if (end > 0) {  // the beginning of the last character
    auto const lead = static_cast<unsigned char>(out[end - 1]);
    auto const length = lead < 0xc0 ? 1U : lead < 0xe0 ? 2U : lead < 0xf0 ? 3U : 4U;
    if (end - 1 + length > out.size()) out.resize(end - 1);
  }
  std::size_t begin = 0;
  while (begin < out.size() && begin < 3 && continues(begin)) ++begin;
  return out.substr(begin);
}

}  // namespace detail

/// Consecutive windows of tokens in memory.
///
/// Shapes   inputs (T) int32; targets (T) int32: the next token of each, or -1 after a separator. In windows to
///          evaluate on the last target is -1 too: nothing outside a window is used, so it has T - 1 predictions.
/// Bytes    4 per token; copies share them.
/// Threads  read() is const.
/// @models trireme::dataset          @see text_tokens
class packed_windows {
 public:
  enum class kind { training, held_out };

  /// Errors   config_error if there are too few tokens for one window.
  packed_windows(std::vector<std::int32_t> tokens, std::int64_t context, kind use = kind::training,
                 std::int32_t separator = -1)
      : tokens_(std::make_shared<std::vector<std::int32_t> const>(std::move(tokens))),
        context_(context),
        use_(use),
        separator_(separator) {
    auto const more = use_ == kind::training ? 1 : 0;
    if (context_ < 1 || token_count() - more < context_) {
      throw config_error(text("trireme::data::packed_windows: ", how_many(token_count(), "token"),
                              ", but one window of .context = ", context_, " needs ", more == 0 ? "" : "one more than ",
                              "that many: choose a shorter context or a longer text"));
    }
    size_ = (token_count() - more) / context_;
  }

  /// The first `windows` windows, or all if there are fewer.
  [[nodiscard]] packed_windows first(std::int64_t windows) const {
    auto out = *this;
    out.size_ = std::clamp<std::int64_t>(windows, 1, size_);
    return out;
  }

  [[nodiscard]] std::int64_t token_count() const noexcept { return static_cast<std::int64_t>(tokens_->size()); }
  [[nodiscard]] std::span<std::int32_t const> tokens() const noexcept { return *tokens_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {context_}; }
  [[nodiscard]] shape target_shape() const { return {context_}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      auto const* const begin = tokens_->data() + id * context_;
      in = std::copy_n(begin, context_, in);
      for (std::int64_t t = 0; t < context_; ++t) {
        auto const outside = t + 1 == context_ && use_ == kind::held_out;
        auto const ends = separator_ >= 0 && begin[t] == separator_;
        *out++ = outside || ends ? -1 : begin[t + 1];
      }
    }
  }

 private:
  std::shared_ptr<std::vector<std::int32_t> const> tokens_;
  std::int64_t context_;
  kind use_;
  std::int32_t separator_;
  std::int64_t size_ = 0;
};

namespace detail {

template <text_encoder Encode>
[[nodiscard]] packed_windows pack(text_tokens const& from, Encode const& encode, packed_windows::kind use) {
  auto const letters = characters_of(from);
  std::vector<std::int32_t> tokens;
  for (std::string_view left = letters; !left.empty();) {
    auto const end = from.document_end.empty() ? std::string_view::npos : left.find(from.document_end);
    auto const document = left.substr(0, end);
    left.remove_prefix(end == std::string_view::npos ? left.size() : end + from.document_end.size());
    if (document.empty()) continue;
    std::vector<std::int32_t> const some = encode(document);
    tokens.insert(tokens.end(), some.begin(), some.end());
    if (from.separator >= 0) tokens.push_back(from.separator);
  }
  return {std::move(tokens), from.context, use, from.separator};
}

}  // namespace detail

template <text_encoder Encode>
packed_windows text_tokens::open(Encode const& encode) const {
  return detail::pack(*this, encode, packed_windows::kind::training);
}
template <text_encoder Encode>
packed_windows text_tokens::open_held_out(Encode const& encode) const {
  return detail::pack(*this, encode, packed_windows::kind::held_out);
}

/// "trireme::data::text_tokens{.path = "text", .context = 256, ...}"
[[nodiscard]] inline std::string to_string(text_tokens const& from) {
  return text("trireme::data::text_tokens{.path = \"", from.path, "\", .context = ", from.context,
              ", .first_byte = ", from.first_byte, ", .last_byte = ", from.last_byte, ", .document_end = \"",
              from.document_end, "\", .separator = ", from.separator, "}");
}

}  // namespace trireme::data
