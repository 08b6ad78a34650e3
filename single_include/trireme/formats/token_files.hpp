// Trireme 0.1.0: trireme/formats/token_files.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 6bb10207e8c4e44f5bbdd0e913d0607a2aba97470255f7abd91032c4aa739782
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/token_files.hpp
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

/// The headers of files that hold tokens: those of llm.c (and of modded-nanogpt, which uses the same) and the index
/// files of Megatron-LM. All numbers are little-endian.
namespace trireme::formats::token_files {

/// How a file stores one token.
enum class number : std::uint8_t { u8, i8, i16, i32, i64, u16, u32 };

[[nodiscard]] constexpr int bytes_of(number type) noexcept {
  switch (type) {
    case number::u8:
    case number::i8:
      return 1;
    case number::i16:
    case number::u16:
      return 2;
    case number::i32:
    case number::u32:
      return 4;
    case number::i64:
      return 8;
  }
  return 0;
}

[[nodiscard]] constexpr std::string_view name_of(number type) noexcept {
  constexpr std::string_view names[] = {"uint8", "int8", "int16", "int32", "int64", "uint16", "uint32"};
  return names[static_cast<std::size_t>(type)];
}

/// What the header of a file of llm.c says.
struct llm_c_header {
  number type = number::u16;
  std::int64_t count = 0;
};

inline constexpr std::size_t llm_c_header_bytes = 1024;  ///< 256 numbers of 32 bits: magic, version, count, zeros

namespace detail {

template <class T>
[[nodiscard]] T number_at(std::span<std::byte const> bytes, std::size_t at) {
  T out{};
  std::memcpy(&out, bytes.data() + at, sizeof(T));
  return out;
}

inline constexpr std::int32_t llm_c_magic_u16 = 20240520, llm_c_magic_u32 = 20240801;

}  // namespace detail

/// Whether a file begins with one of llm.c's magic numbers.
[[nodiscard]] inline bool is_llm_c(std::span<std::byte const> start) {
  if (start.size() < 4) return false;
  auto const magic = detail::number_at<std::int32_t>(start, 0);
  return magic == detail::llm_c_magic_u16 || magic == detail::llm_c_magic_u32;
}

/// Parses the header of a file of llm.c: 20240520, version 1 (uint16: GPT-2's tokens) or 20240801, version 7 (uint32:
/// Llama 3's). Accesses only its arguments, so that it can be fuzzed.
///
/// Errors   throws format_error(path, byte, reason) unless exactly `count` tokens follow the header.
///
/// @param start  the first 12 bytes of the file, or more.
[[nodiscard]] inline llm_c_header parse_llm_c(std::span<std::byte const> start, std::uint64_t file_size,
                                              std::string const& path) {
  if (!is_llm_c(start)) {
    throw format_error(path, 0, "a token file of llm.c begins with the number 20240520 or 20240801");
  }
  if (file_size < llm_c_header_bytes || start.size() < 12) {
    throw format_error(path, file_size, text("the file ends within llm.c's header of ", llm_c_header_bytes, " bytes"));
  }
  bool const wide = detail::number_at<std::int32_t>(start, 0) == detail::llm_c_magic_u32;
  auto const version = detail::number_at<std::int32_t>(start, 4), needed = wide ? 7 : 1;
  if (version != needed) {
    throw format_error(path, 4, text("llm.c's header has version ", version, "; ", needed, " is read"));
  }
  llm_c_header const out{wide ? number::u32 : number::u16, detail::number_at<std::int32_t>(start, 8)};
  if (out.count < 1) throw format_error(path, 8, text("llm.c's header says that there are ", out.count, " tokens"));
  auto const bytes = static_cast<std::uint64_t>(out.count) * static_cast<std::uint64_t>(bytes_of(out.type));
  if (bytes != file_size - llm_c_header_bytes) {
    throw format_error(path, 8,
                       text("llm.c's header says that ", how_many(out.count, "token"), " of ", bytes_of(out.type),
                            " bytes follow, but ", how_many(file_size - llm_c_header_bytes, "byte"),
                            agreeing(file_size - llm_c_header_bytes, " follows", " follow")));
  }
  return out;
}

/// The header that parse_llm_c() reads. A header of llm.c holds its count in 31 bits.
///
/// Errors   config_error for other types than uint16 and uint32, and for counts that do not fit.
[[nodiscard]] inline std::array<std::byte, llm_c_header_bytes> llm_c_bytes(llm_c_header const& header) {
  bool const wide = header.type == number::u32;
  if (!wide && header.type != number::u16) {
    throw config_error(
        text("trireme::formats::token_files: llm.c stores uint16 or uint32, not ", name_of(header.type)));
  }
  if (header.count < 1 || header.count > std::numeric_limits<std::int32_t>::max()) {
    throw config_error(text("trireme::formats::token_files: ", header.count,
                            " tokens do not fit one file of llm.c; it holds from 1 to 2147483647"));
  }
  std::array<std::byte, llm_c_header_bytes> out{};
  std::int32_t const start[] = {wide ? detail::llm_c_magic_u32 : detail::llm_c_magic_u16, wide ? 7 : 1,
                                static_cast<std::int32_t>(header.count)};
  std::memcpy(out.data(), start, sizeof(start));
  return out;
}

/// The header of one of Megatron-LM's .idx files, and where its three lists are.
struct megatron_index {
  number type = number::u16;
  std::int64_t sequences = 0;  ///< each has a length (int32) and a position in the .bin file in bytes (int64)
  std::int64_t ends = 0;       ///< numbers in the list of documents (int64): 0, then the sequences before each end
  [[nodiscard]] std::uint64_t lengths_at() const noexcept { return header_bytes; }
  [[nodiscard]] std::uint64_t pointers_at() const noexcept {
    return header_bytes + 4 * static_cast<std::uint64_t>(sequences);
  }
  [[nodiscard]] std::uint64_t documents_at() const noexcept {
    return header_bytes + 12 * static_cast<std::uint64_t>(sequences);
  }
  static constexpr std::size_t header_bytes = 34;
};

/// Parses the header of a .idx file. Accesses only its arguments, so that it can be fuzzed. It does not see the lists.
///
/// Checks: "MMIDIDX\0\0", version 1, a type code of integers (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16),
/// and counts that make exactly the size of the file.
///
/// Errors   throws format_error(path, byte, reason).
///
/// @param start  the first 34 bytes of the file, or more.
[[nodiscard]] inline megatron_index parse_megatron(std::span<std::byte const> start, std::uint64_t file_size,
                                                   std::string const& path) {
  static constexpr char magic[] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
  if (start.size() < sizeof(magic) || std::memcmp(start.data(), magic, sizeof(magic)) != 0) {
    throw format_error(path, 0, "an index of Megatron begins with \"MMIDIDX\" and two bytes of 0");
  }
  if (start.size() < megatron_index::header_bytes || file_size < megatron_index::header_bytes) {
    throw format_error(path, start.size(),
                       text("the file ends within the header of ", megatron_index::header_bytes, " bytes"));
  }
  auto const version = detail::number_at<std::uint64_t>(start, 9);
  if (version != 1) throw format_error(path, 9, text("the index has version ", version, "; 1 is read"));
  auto const code = std::to_integer<unsigned>(start[17]);
  static constexpr std::optional<number> types[] = {std::nullopt, number::u8,   number::i8,   number::i16, number::i32,
                                                    number::i64,  std::nullopt, std::nullopt, number::u16};
  if (code >= std::size(types) || !types[code]) {
    throw format_error(path, 17,
                       code == 6 || code == 7
                           ? text("the type code ", code, " means floating-point numbers, which are not tokens")
                           : text("the type code is ", code, "; codes are 1 to 8"));
  }
  auto const sequences = detail::number_at<std::uint64_t>(start, 18),
             ends = detail::number_at<std::uint64_t>(start, 26);
  auto const left = file_size - megatron_index::header_bytes;
  if (sequences < 1 || sequences > left / 12) {
    throw format_error(path, 18,
                       text("the index has ", how_many(file_size, "byte"),
                            ", which do not hold its number of sequences, ", sequences));
  }
  if (ends < 1 || ends > left / 8 || 12 * sequences + 8 * ends != left) {
    throw format_error(path, 26,
                       text("the header says that the index has ", how_many(sequences, "sequence"), " and ", ends,
                            " numbers of documents, but it has ", how_many(file_size, "byte")));
  }
  return {*types[code], static_cast<std::int64_t>(sequences), static_cast<std::int64_t>(ends)};
}

}  // namespace trireme::formats::token_files
