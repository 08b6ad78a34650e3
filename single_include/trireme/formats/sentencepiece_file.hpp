// Trireme 0.1.0: trireme/formats/sentencepiece_file.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 70f093fd2bbfdef952918642a143a97b200fdcd564c42a5c433df204496a56ab
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/sentencepiece_file.hpp
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// ---- trireme/formats/sentencepiece_file.hpp (goes on)
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
