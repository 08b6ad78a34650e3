// Trireme 0.1.0: trireme/formats/sentencepiece.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: f160b0d9a0cbeee2afc4aaaefdb23aba5e4d7572f607720d6c2f16ef51bb20eb
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/sentencepiece.hpp
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::formats {

/// A tokenizer in a file of sentencepiece (tokenizer.model, spiece.model), of unigrams or of byte pairs: texts to the
/// numbers of tokens, and back. It stands wherever formats::tokenizer does: in a lambda for data::text_tokens, beneath
/// a token_stream.
///
/// What begins and ends a text is not in the file: encode() gives the text's own tokens, begin() and end() the others.
///
/// Needs    sentencepiece (CMake: trireme::sentencepiece), whose code reads the file and does the work.
/// Numerics the same numbers as the Python package sentencepiece; a test compares them, line by line. Where two ways to
///          cut a text have the same score, as far as float sums tell, the version of the library decides.
/// Bytes    the library's. A file may have 256 MiB.
/// Threads  const; any number of callers.
/// Errors   read() throws io_error, parse() format_error. Bytes that are not UTF-8 are encoded as U+FFFD.
/// @see tokenizer, which reads Hugging Face's files
class sentencepiece {
 public:
  [[nodiscard]] static sentencepiece read(std::string const& path, file_system& files = real_files()) {
    return parse(read_text(path, most_bytes, files), path);
  }
  /// @param path  what errors call the bytes.
  [[nodiscard]] static sentencepiece parse(std::string_view bytes, std::string const& path) {
    sentencepiece out;
    auto const status = out.pieces_->LoadFromSerializedProto({bytes.data(), bytes.size()});
    if (!status.ok() || out.vocabulary() < 1)
      throw format_error(path, 0, "it is no model of sentencepiece, or a damaged one: the library does not load it");
    return out;
  }

  [[nodiscard]] std::int64_t vocabulary() const { return pieces_->GetPieceSize(); }
  /// The number of a token, written as in the file ("\u2581the").
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const {
    auto const id = pieces_->PieceToId({token.data(), token.size()});  // that of the unknown one if there is none
    auto const* const found = token_of(id);
    return found != nullptr && *found == token ? std::optional(id) : std::nullopt;
  }
  /// The token of a number, or nullptr.
  [[nodiscard]] std::string const* token_of(std::int32_t id) const {
    return id >= 0 && id < vocabulary() ? &pieces_->IdToPiece(id) : nullptr;
  }
  [[nodiscard]] std::optional<std::int32_t> begin() const { return given(pieces_->bos_id()); }  ///< <s>
  [[nodiscard]] std::optional<std::int32_t> end() const { return given(pieces_->eos_id()); }    ///< </s>

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<int> ids;
    auto const status = pieces_->Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) throw error("trireme::formats::sentencepiece: the library does not encode: " + status.ToString());
    return ids;
  }
  /// The text of tokens. Numbers without a token are left out, and bytes that make no UTF-8 become U+FFFD.
  [[nodiscard]] std::string decode(std::span<std::int32_t const> ids) const {
    std::vector<int> some;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(some), [&](auto id) { return token_of(id) != nullptr; });
    std::string text;
    auto const status = pieces_->Decode(some, &text);
    if (!status.ok()) throw error("trireme::formats::sentencepiece: the library does not decode: " + status.ToString());
    return text;
  }

 private:
  static constexpr std::uint64_t most_bytes = std::uint64_t{1} << 28;
  sentencepiece() = default;
  static std::optional<std::int32_t> given(int id) { return id < 0 ? std::nullopt : std::optional<std::int32_t>(id); }

  std::unique_ptr<::sentencepiece::SentencePieceProcessor> pieces_ =
      std::make_unique<::sentencepiece::SentencePieceProcessor>();
};

}  // namespace trireme::formats
