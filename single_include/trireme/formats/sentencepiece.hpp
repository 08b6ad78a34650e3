// Trireme 0.1.0: trireme/formats/sentencepiece.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 3ac26eb4b6a4a3af005c93344cc2a614457f2d2cca577f74ccc3c8741a760777
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

/// A tokenizer from a file of sentencepiece (tokenizer.model, spiece.model), of unigrams or of byte pairs: texts to
/// token ids, and back. It can be used wherever formats::tokenizer can: in a lambda for data::text_tokens, or in a
/// token_stream.
///
/// The file does not define the tokens at the beginning and end of a text: encode() returns only the text's own tokens;
/// use begin() and end() for the others.
///
/// Needs    sentencepiece (CMake: trireme::sentencepiece), which reads the file and encodes.
/// Numerics the same ids as the Python package sentencepiece; a test compares them, line by line. If two divisions of a
///          text have the same score in float, the result depends on the version of the library.
/// Bytes    those of the library. A file may have up to 256 MiB.
/// Threads  const; any number of callers.
/// Errors   read() throws io_error, parse() format_error. Bytes that are not UTF-8 are encoded as U+FFFD.
/// @see tokenizer, which reads Hugging Face's files
class sentencepiece {
 public:
  [[nodiscard]] static sentencepiece read(std::string const& path, file_system& files = real_files()) {
    return parse(read_text(path, most_bytes, files), path);
  }
  /// @param path  the name of the bytes in errors.
  [[nodiscard]] static sentencepiece parse(std::string_view bytes, std::string const& path) {
    sentencepiece out;
    auto const status = out.pieces_->LoadFromSerializedProto({bytes.data(), bytes.size()});
    if (!status.ok() || out.vocabulary() < 1)
      throw format_error(path, 0, "not a sentencepiece model, or a damaged one: the library cannot load it");
    return out;
  }

  [[nodiscard]] std::int64_t vocabulary() const { return pieces_->GetPieceSize(); }
  /// The id of a token, written as in the file ("\u2581the").
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const {
    auto const id = pieces_->PieceToId({token.data(), token.size()});  // the unknown token's if there is none
    auto const* const found = token_of(id);
    return found != nullptr && *found == token ? std::optional(id) : std::nullopt;
  }
  /// The token of an id, or nullptr.
  [[nodiscard]] std::string const* token_of(std::int32_t id) const {
    return id >= 0 && id < vocabulary() ? &pieces_->IdToPiece(id) : nullptr;
  }
  [[nodiscard]] std::optional<std::int32_t> begin() const { return given(pieces_->bos_id()); }  ///< <s>
  [[nodiscard]] std::optional<std::int32_t> end() const { return given(pieces_->eos_id()); }    ///< </s>

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<int> ids;
    auto const status = pieces_->Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) throw error("trireme::formats::sentencepiece: the library cannot encode: " + status.ToString());
    return ids;
  }
  /// The text of tokens. Ids without a token are left out, and bytes that are not UTF-8 become U+FFFD.
  [[nodiscard]] std::string decode(std::span<std::int32_t const> ids) const {
    std::vector<int> some;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(some), [&](auto id) { return token_of(id) != nullptr; });
    std::string text;
    auto const status = pieces_->Decode(some, &text);
    if (!status.ok()) throw error("trireme::formats::sentencepiece: the library cannot decode: " + status.ToString());
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
