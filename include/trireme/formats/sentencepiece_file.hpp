#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/formats/detail/protobuf.hpp"

namespace trireme::formats {

/// What a file of sentencepiece has (tokenizer.model, spiece.model), without a library.
/// @see sentencepiece, which encodes with such a file
struct sentencepiece_file {
  /// The format's numbers, which are those of GGUF.
  enum type : std::int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  enum model_type : std::int64_t { unigram = 1, byte_pairs = 2 };
  struct piece {
    std::string content;
    float score = 0;
    std::int32_t kind = normal;
  };
  std::vector<piece> pieces{};
  std::int64_t model = unigram;
  bool byte_fallback = false;
  std::int64_t unknown_id = 0, begin = 1, end = 2, padding = -1;
  bool prefix = true;         ///< whether a space is put before a text
  bool extra_spaces = false;  ///< whether several in a row, and those around a text, are kept
  std::string characters{};   ///< the compiled map of characters

  /// Errors   format_error.
  [[nodiscard]] static sentencepiece_file parse(std::string_view text, std::string const& path) {
    using protobuf::is;
    using protobuf::wire;
    sentencepiece_file out;
    auto const number = [](std::uint64_t value) { return static_cast<std::int64_t>(static_cast<std::int32_t>(value)); };
    protobuf::message_reader model(std::as_bytes(std::span(text)), path, 0);
    for (protobuf::message_reader::message_field part; model.next(part);) {
      if (part.kind != wire::bytes || part.number > 3) continue;
      protobuf::message_reader inner(part.content, path, part.offset);
      if (part.number == 1) out.pieces.emplace_back();
      for (protobuf::message_reader::message_field it; inner.next(it);) {
        if (part.number == 1) {
          auto& piece = out.pieces.back();
          if (is(inner, it, 1, wire::bytes)) piece.content = protobuf::text_of(it.content);
          if (is(inner, it, 2, wire::fixed32)) piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(it.value));
          if (is(inner, it, 3, wire::varint)) piece.kind = static_cast<std::int32_t>(it.value);
          if (piece.kind < normal || piece.kind > byte) inner.fail("a piece of an unknown type");
        } else if (part.number == 2) {
          if (is(inner, it, 3, wire::varint)) out.model = number(it.value);
          if (is(inner, it, 35, wire::varint)) out.byte_fallback = it.value != 0;
          if (is(inner, it, 40, wire::varint)) out.unknown_id = number(it.value);
          if (is(inner, it, 41, wire::varint)) out.begin = number(it.value);
          if (is(inner, it, 42, wire::varint)) out.end = number(it.value);
          if (is(inner, it, 43, wire::varint)) out.padding = number(it.value);
        } else {
          if (is(inner, it, 2, wire::bytes)) out.characters = protobuf::text_of(it.content);
          if (is(inner, it, 3, wire::varint)) out.prefix = it.value != 0;
          if (is(inner, it, 4, wire::varint)) out.extra_spaces = it.value == 0;
        }
      }
    }
    if (out.pieces.empty()) model.fail("no pieces: not a file of sentencepiece");
    return out;
  }
};

}  // namespace trireme::formats
