// Trireme 0.1.0: trireme/formats/gguf.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 0dd8c6d00abeb30f6a6179bc7f950a8e8b47a2bb9baba90fac540794f746e495
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/gguf.hpp
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// Files of llama.cpp and ollama: GGUF, version 3, little-endian. nn/gguf.hpp writes a model to one.
namespace trireme::formats::gguf {

/// How a tensor's numbers are stored. The quantised kinds store blocks of 32 numbers of a row: a scale (Q4_0, Q5_0,
/// Q8_0), or a scale and a minimum (Q4_1, Q5_1), as float16, and integers of 4, 5 or 8 bits. The values are the
/// format's.
enum class kind : std::uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, bf16 = 30 };

/// All of them, the most exact first.
inline constexpr std::array kinds{kind::f32,  kind::f16,  kind::bf16, kind::q8_0,
                                  kind::q5_1, kind::q5_0, kind::q4_1, kind::q4_0};

/// "Q8_0"
[[nodiscard]] std::string_view name_of(kind which) noexcept;
/// The kind of that name, in capitals or not.
[[nodiscard]] std::optional<kind> kind_named(std::string_view name);
/// The numbers of a block, 32 or 1, and its bytes.
[[nodiscard]] constexpr std::int64_t block_elements(kind which) noexcept {
  return which == kind::f32 || which == kind::f16 || which == kind::bf16 ? 1 : 32;
}
[[nodiscard]] constexpr std::int64_t block_bytes(kind which) noexcept {
  switch (which) {
    case kind::f32:
      return 4;
    case kind::f16:
    case kind::bf16:
      return 2;
    case kind::q4_0:
      return 18;
    case kind::q4_1:
      return 20;
    case kind::q5_0:
      return 22;
    case kind::q5_1:
      return 24;
    case kind::q8_0:
      return 34;
  }
  return 0;
}

/// Converts numbers to a kind.
///
/// Numerics  the bytes of the Python package gguf (gguf.quants.quantize), also for infinities, NaNs and denormals.
/// Errors    config_error if `from` is not a whole number of blocks, or `to` has another size.
void quantize(kind which, std::span<float const> from, std::span<std::byte> to);
/// Converts back; errors as quantize().
void dequantize(kind which, std::span<std::byte const> from, std::span<float> to);

/// A value of a file's metadata. The order is that of the format's type numbers, with arrays behind all scalars.
using value =
    std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float, bool,
                 std::string, std::uint64_t, std::int64_t, double, std::vector<std::uint8_t>, std::vector<std::int8_t>,
                 std::vector<std::uint16_t>, std::vector<std::int16_t>, std::vector<std::uint32_t>,
                 std::vector<std::int32_t>, std::vector<float>, std::vector<bool>, std::vector<std::string>,
                 std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>;

/// Keys and values, in the order of the file.
using metadata = std::vector<std::pair<std::string, value>>;

/// The value of a key, or nullptr.
[[nodiscard]] value const* find(metadata const& in, std::string_view key) noexcept;

/// A tensor of a file. The caller of a writer sets name, type and shape; the writer computes `begin` and `bytes`.
/// `begin` counts from the start of the file's data.
struct entry {
  std::string name;
  kind type = kind::f32;
  shape extents;  ///< outermost first, as elsewhere in this library; the file has the opposite order
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(entry const&, entry const&) = default;
};

/// The parsed beginning of a file.
struct header {
  gguf::metadata notes;
  std::vector<entry> entries;  ///< in the order of the file
  std::uint64_t alignment = 32;
  std::uint64_t data_offset = 0;  ///< the position of the data in the file
};

/// A longer header, more tensors or a higher rank is refused.
inline constexpr std::uint64_t most_header_bytes = std::uint64_t{1} << 28;
inline constexpr std::uint64_t most_tensors = 1'000'000;
inline constexpr int most_rank = 4;

/// Parses and checks the beginning of a file; accesses only its arguments, so that it can be fuzzed.
///
/// Checks: the magic bytes and version 3; at most 256 MiB; no key and no tensor twice; ranks of at most 4; rows that
/// are whole blocks; data without overlap, in the order of the entries, within the file. Arrays of arrays, and kinds of
/// tensors other than those of `kind`, are refused.
///
/// Errors   format_error(path, byte, reason).
///
/// @param start  the first bytes of the file.
/// @returns nothing if the header goes on behind `start`, but not behind the file.
[[nodiscard]] std::optional<header> parse_header(std::span<std::byte const> start, std::uint64_t file_size,
                                                 std::string const& path);

/// Reads tensors, or parts of them.
///
/// Threads  read() may be called from several threads at once.
/// Errors   format_error if the file is invalid (see parse_header), io_error if it cannot be read, config_error for a
///          tensor or range that it does not have.
class reader {
 public:
  explicit reader(std::string path, file_system& files = real_files());

  [[nodiscard]] std::string const& path() const noexcept { return file_.path(); }
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return header_.entries; }
  [[nodiscard]] gguf::metadata const& metadata() const noexcept { return header_.notes; }
  [[nodiscard]] std::uint64_t alignment() const noexcept { return header_.alignment; }
  /// The tensor of that name; linear in the number of tensors.
  [[nodiscard]] entry const& at(std::string_view name) const;

  /// Fills `to` with the stored bytes of a tensor from byte `first` on.
  void read(entry const& from, std::uint64_t first, std::span<std::byte> to) const;
  /// Fills `to` with the numbers of a tensor from element `first` on; both are whole blocks.
  void read(entry const& from, std::int64_t first, std::span<float> to) const;

 private:
  file file_;
  header header_;
};

/// Writes a file: metadata and tensors are declared first, then the tensors' numbers follow in the same order, in
/// pieces of any whole number of blocks.
///
/// Memory is one piece. finish() gives the file its name when it is complete and on the device (atomic_file); a writer
/// that is destroyed earlier leaves no file. Each tensor begins at a multiple of 32 bytes, or of `general.alignment` in
/// the metadata.
///
/// Errors   io_error; config_error for metadata and entries that the reader would refuse, for more numbers than
///          declared, and for finish() before all are written.
class writer {
 public:
  writer(std::string const& path, metadata const& notes, std::vector<entry> entries, file_system& files = real_files());

  /// With begin and bytes set.
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return entries_; }
  /// The length of the finished file.
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  /// Appends numbers of the current tensor, which are converted to its kind.
  void write(std::span<float const> values);
  /// Appends bytes that are in the tensor's kind already.
  void write(std::span<std::byte const> bytes);
  void finish();

 private:
  void skip_written();

  std::string path_;
  std::uint64_t alignment_;
  std::vector<entry> entries_;
  std::uint64_t file_bytes_ = 0;
  std::string header_;         // sets file_bytes_
  std::size_t current_ = 0;    // of entries_
  std::uint64_t written_ = 0;  // bytes of it
  std::vector<std::byte> converted_;
  atomic_file file_;
};

}  // namespace trireme::formats::gguf

#ifndef TRIREME_FORMATS_GGUF_IPP_INCLUDED
#define TRIREME_FORMATS_GGUF_IPP_INCLUDED

// ---- trireme/formats/gguf.ipp
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>

namespace trireme::formats::gguf {

TRIREME_BODY std::string_view name_of(kind which) noexcept {
  switch (which) {
    case kind::f32:
      return "F32";
    case kind::f16:
      return "F16";
    case kind::bf16:
      return "BF16";
    case kind::q4_0:
      return "Q4_0";
    case kind::q4_1:
      return "Q4_1";
    case kind::q5_0:
      return "Q5_0";
    case kind::q5_1:
      return "Q5_1";
    case kind::q8_0:
      return "Q8_0";
  }
  return "unknown";
}

TRIREME_BODY std::optional<kind> kind_named(std::string_view name) {
  std::string capitals(name);
  for (auto& letter : capitals) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  for (auto const which : kinds) {
    if (name_of(which) == capitals) return which;
  }
  return std::nullopt;
}

namespace detail {

inline constexpr std::size_t block = 32;

/// x * y, rounded to float before anything is added to it: a compiler must not contract the two to one operation,
/// which would round only once.
[[nodiscard]] inline float product(float x, float y) noexcept {
  return static_cast<float>(static_cast<double>(x) * static_cast<double>(y));
}
/// A number without its fraction, of at most `most`; 0 for what is not one, as CPUs convert it.
[[nodiscard]] inline std::uint8_t whole(float number, int most) noexcept {
  if (!(number > -1.0F && number < 256.0F)) return 0;
  return static_cast<std::uint8_t>(std::min(static_cast<int>(number), most));
}
/// Rounded to nearest, ties away from zero; 0 for what is not a number.
[[nodiscard]] inline std::int8_t nearest(float number) noexcept {
  float const size = std::abs(number);
  if (!(size < 128.0F)) return 0;
  float const below = std::floor(size);
  auto const rounded = static_cast<int>(below + std::floor(2.0F * (size - below)));
  return static_cast<std::int8_t>(number < 0 ? -rounded : rounded);
}
inline void put_half(std::byte* to, float number) noexcept {
  float16 const half(number);
  std::memcpy(to, &half.bits, 2);
}
[[nodiscard]] inline float half_at(std::byte const* from) noexcept {
  float16 half;
  std::memcpy(&half.bits, from, 2);
  return static_cast<float>(half);
}
/// The inverse of a scale; 0 for no scale.
[[nodiscard]] inline float inverse(float scale) noexcept {
  return std::abs(scale) > 0 || std::isnan(scale) ? 1.0F / scale : 0.0F;
}

/// The number of the largest size in a block, with its sign: the first of them, or the first NaN.
[[nodiscard]] inline float largest(float const* x) noexcept {
  std::size_t at = 0;
  for (std::size_t i = 0; i < block && !std::isnan(x[at]); ++i) {
    if (std::isnan(x[i]) || std::abs(x[i]) > std::abs(x[at])) at = i;
  }
  return x[at];
}
/// The smallest and the largest number of a block; NaN if one is.
[[nodiscard]] inline std::pair<float, float> limits(float const* x) noexcept {
  float low = x[0], high = x[0];
  for (std::size_t i = 1; i < block; ++i) {
    if (std::isnan(low)) break;
    if (std::isnan(x[i])) return {x[i], x[i]};
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  return {low, high};
}

/// Two integers of four bits in a byte: number i and number i + 16.
inline void put_nibbles(std::byte* to, std::array<std::uint8_t, block> const& q) noexcept {
  for (std::size_t i = 0; i < block / 2; ++i)
    to[i] = static_cast<std::byte>((q[i] & 0xfU) | ((q[i + block / 2] & 0xfU) << 4));
}
/// The fifth bits of 32 integers.
inline void put_fifth_bits(std::byte* to, std::array<std::uint8_t, block> const& q) noexcept {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < block; ++i) bits |= std::uint32_t{q[i]} >> 4 << i;
  std::memcpy(to, &bits, 4);
}
[[nodiscard]] inline std::array<std::uint8_t, block> integers(std::byte const* nibbles,
                                                              std::byte const* fifth_bits) noexcept {
  std::array<std::uint8_t, block> q{};
  std::uint32_t bits = 0;
  if (fifth_bits != nullptr) std::memcpy(&bits, fifth_bits, 4);
  for (std::size_t i = 0; i < block; ++i) {
    auto const both = static_cast<std::uint8_t>(nibbles[i % (block / 2)]);
    q[i] = static_cast<std::uint8_t>((i < block / 2 ? both & 0xfU : both >> 4U) | ((bits >> i & 1U) << 4U));
  }
  return q;
}

/// Integers from 0 to 2 * half - 1, which are `half` for zero; the scale makes the largest number integer 0.
inline void quantize_symmetric(float const* x, std::byte* to, int half) noexcept {
  float const scale = largest(x) / static_cast<float>(-half), times = inverse(scale);
  std::array<std::uint8_t, block> q{};
  for (std::size_t i = 0; i < block; ++i)
    q[i] = whole(product(x[i], times) + (static_cast<float>(half) + 0.5F), 2 * half - 1);
  put_half(to, scale);
  if (half == 16) put_fifth_bits(to + 2, q);
  put_nibbles(to + (half == 16 ? 6 : 2), q);
}
/// Integers from 0 to `most`, from the smallest number to the largest.
inline void quantize_shifted(float const* x, std::byte* to, int most) noexcept {
  auto const [low, high] = limits(x);
  float const scale = (high - low) / static_cast<float>(most), times = inverse(scale);
  std::array<std::uint8_t, block> q{};
  for (std::size_t i = 0; i < block; ++i) q[i] = whole(product(x[i] - low, times) + 0.5F, most);
  put_half(to, scale);
  put_half(to + 2, low);
  if (most == 31) put_fifth_bits(to + 4, q);
  put_nibbles(to + (most == 31 ? 8 : 4), q);
}
inline void quantize_bytes(float const* x, std::byte* to) noexcept {
  float const scale = std::abs(largest(x)) / 127.0F, times = inverse(scale);
  put_half(to, scale);
  for (std::size_t i = 0; i < block; ++i) to[2 + i] = static_cast<std::byte>(nearest(product(x[i], times)));
}

[[noreturn]] inline void wrong_size(char const* function, kind which, std::size_t elements, std::size_t bytes) {
  throw config_error(text("trireme::formats::gguf::", function, ": ", how_many(elements, "number"), " and ",
                          how_many(bytes, "byte"), " of ", name_of(which), "; blocks have ", block_elements(which),
                          " numbers in ", how_many(block_bytes(which), "byte")));
}
[[nodiscard]] inline std::size_t blocks_in(char const* function, kind which, std::size_t elements, std::size_t bytes) {
  auto const each = static_cast<std::size_t>(block_elements(which));
  auto const count = elements / each;
  if (elements % each != 0 || bytes != count * static_cast<std::size_t>(block_bytes(which)))
    wrong_size(function, which, elements, bytes);
  return count;
}

}  // namespace detail

TRIREME_BODY void quantize(kind which, std::span<float const> from, std::span<std::byte> to) {
  auto const count = detail::blocks_in("quantize", which, from.size(), to.size());
  if (which == kind::f32) {
    if (count > 0) std::memcpy(to.data(), from.data(), to.size());
    return;
  }
  auto const elements = static_cast<std::size_t>(block_elements(which));
  auto const bytes = static_cast<std::size_t>(block_bytes(which));
  for (std::size_t i = 0; i < count; ++i) {
    auto const* const x = from.data() + i * elements;
    auto* const out = to.data() + i * bytes;
    switch (which) {
      case kind::f32:
        break;
      case kind::f16:
        detail::put_half(out, *x);
        break;
      case kind::bf16: {
        bfloat16 const short_number(*x);
        std::memcpy(out, &short_number.bits, 2);
        break;
      }
      case kind::q4_0:
        detail::quantize_symmetric(x, out, 8);
        break;
      case kind::q5_0:
        detail::quantize_symmetric(x, out, 16);
        break;
      case kind::q4_1:
        detail::quantize_shifted(x, out, 15);
        break;
      case kind::q5_1:
        detail::quantize_shifted(x, out, 31);
        break;
      case kind::q8_0:
        detail::quantize_bytes(x, out);
        break;
    }
  }
}

TRIREME_BODY void dequantize(kind which, std::span<std::byte const> from, std::span<float> to) {
  auto const count = detail::blocks_in("dequantize", which, to.size(), from.size());
  if (which == kind::f32) {
    if (count > 0) std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  auto const elements = static_cast<std::size_t>(block_elements(which));
  auto const bytes = static_cast<std::size_t>(block_bytes(which));
  for (std::size_t i = 0; i < count; ++i) {
    auto const* const in = from.data() + i * bytes;
    auto* const x = to.data() + i * elements;
    float const scale = detail::half_at(in);
    switch (which) {
      case kind::f32:
        break;
      case kind::f16:
        *x = scale;
        break;
      case kind::bf16: {
        bfloat16 number;
        std::memcpy(&number.bits, in, 2);
        *x = static_cast<float>(number);
        break;
      }
      case kind::q4_0:
      case kind::q5_0: {
        bool const five = which == kind::q5_0;
        auto const q = detail::integers(in + (five ? 6 : 2), five ? in + 2 : nullptr);
        for (std::size_t j = 0; j < elements; ++j) x[j] = scale * static_cast<float>(q[j] - (five ? 16 : 8));
        break;
      }
      case kind::q4_1:
      case kind::q5_1: {
        bool const five = which == kind::q5_1;
        auto const q = detail::integers(in + (five ? 8 : 4), five ? in + 4 : nullptr);
        float const low = detail::half_at(in + 2);
        for (std::size_t j = 0; j < elements; ++j) x[j] = detail::product(scale, static_cast<float>(q[j])) + low;
        break;
      }
      case kind::q8_0:
        for (std::size_t j = 0; j < elements; ++j)
          x[j] = scale * static_cast<float>(static_cast<std::int8_t>(in[2 + j]));
        break;
    }
  }
}

TRIREME_BODY value const* find(metadata const& in, std::string_view key) noexcept {
  for (auto const& [name, content] : in) {
    if (name == key) return &content;
  }
  return nullptr;
}

namespace detail {

inline constexpr std::string_view magic = "GGUF";
inline constexpr std::uint32_t version = 3;
inline constexpr std::uint32_t array_type = 9;
inline constexpr std::size_t scalars = 12;  // of the alternatives of a value
inline constexpr std::string_view alignment_key = "general.alignment";

[[nodiscard]] inline std::uint64_t padded(std::uint64_t bytes, std::uint64_t alignment) noexcept {
  return (bytes + alignment - 1) / alignment * alignment;
}
/// The bytes of a tensor; empty for rows that are not whole blocks, and for 2^62 bytes or more.
[[nodiscard]] TRIREME_BODY std::optional<std::uint64_t> tensor_bytes(kind type, shape const& extents) noexcept {
  auto const row = extents.rank() == 0 ? 1 : extents[extents.rank() - 1];
  if (row % block_elements(type) != 0) return std::nullopt;
  std::uint64_t bytes = 0;
  auto const blocks = static_cast<std::uint64_t>(extents.size() / block_elements(type));
  if (__builtin_mul_overflow(blocks, static_cast<std::uint64_t>(block_bytes(type)), &bytes) || bytes >> 62 != 0)
    return std::nullopt;
  return bytes;
}

/// The format's number of the type of alternative i of a value, or of its elements.
[[nodiscard]] constexpr std::uint32_t type_number(std::size_t i) noexcept {
  auto const scalar = static_cast<std::uint32_t>(i % scalars);
  return scalar < array_type ? scalar : scalar + 1;
}

template <class T>
void put(std::string& out, T number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}
inline void put_text(std::string& out, std::string_view characters) {
  put(out, std::uint64_t{characters.size()});
  out.append(characters);
}
template <class T>
void put_value(std::string& out, T const& content) {
  if constexpr (std::is_same_v<T, std::string>) {
    put_text(out, content);
  } else if constexpr (std::is_same_v<T, bool>) {
    out += content ? '\1' : '\0';
  } else if constexpr (std::is_arithmetic_v<T>) {
    put(out, content);
  } else {
    put(out, std::uint64_t{content.size()});
    for (auto const& each : content) put_value<typename T::value_type>(out, each);
  }
}

/// Takes values from the beginning of a file.
class header_parser {
 public:
  header_parser(std::span<std::byte const> start, std::uint64_t file_size, std::string const& path)
      : start_(start), size_(file_size), path_(path) {}

  [[nodiscard]] std::optional<header> parse() {
    try {
      return all();
    } catch (needs_more const&) {
      return std::nullopt;
    }
  }

 private:
  struct needs_more {};

  [[noreturn]] void fail(std::uint64_t at, std::string const& reason) const { throw format_error(path_, at, reason); }

  std::span<std::byte const> take(std::uint64_t bytes) {
    if (bytes > size_ - at_) fail(at_, text("the file ends before ", how_many(bytes, "byte"), " that belong here"));
    if (at_ + bytes > most_header_bytes) fail(at_, text("the header has more than ", most_header_bytes, " bytes"));
    if (at_ + bytes > start_.size()) throw needs_more{};
    auto const out = start_.subspan(at_, bytes);
    at_ += bytes;
    return out;
  }
  template <class T>
  T number() {
    T out;
    std::memcpy(&out, take(sizeof out).data(), sizeof out);
    return out;
  }
  std::string letters() {
    auto const bytes = take(number<std::uint64_t>());
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
  }
  template <class T>
  T scalar() {
    if constexpr (std::is_same_v<T, std::string>) {
      return letters();
    } else if constexpr (std::is_same_v<T, bool>) {
      auto const truth = number<std::uint8_t>();
      if (truth > 1) fail(at_ - 1, text("a truth value is 0 or 1, not ", truth));
      return truth == 1;
    } else {
      return number<T>();
    }
  }
  /// Calls f with a value of the C++ type of a type's number.
  template <std::size_t I = 0, class F>
  value with_type(std::uint32_t type, F const& f) {
    if constexpr (I < scalars) {
      if (type_number(I) == type) return f(std::variant_alternative_t<I, value>{});
      return with_type<I + 1>(type, f);
    } else {
      fail(at_, text("there is no type of values with the number ", type,
                     ", or it is an array of arrays, which is "
                     "not read"));
    }
  }
  value content() {
    auto const type = number<std::uint32_t>();
    if (type != array_type) return with_type(type, [&]<class T>(T const&) -> value { return scalar<T>(); });
    auto const of = number<std::uint32_t>();
    auto const count = number<std::uint64_t>();
    return with_type(of, [&]<class T>(T const&) -> value {
      constexpr std::uint64_t least = std::is_same_v<T, std::string> ? 8 : sizeof(T);
      if (count > (size_ - at_) / least) fail(at_ - 8, text("an array of ", count, " values goes beyond the file"));
      if (count * least + at_ > start_.size() && size_ > start_.size() && at_ + count * least <= most_header_bytes)
        throw needs_more{};
      std::vector<T> out;
      for (std::uint64_t i = 0; i < count; ++i) out.push_back(scalar<T>());
      return out;
    });
  }

  header all() {
    auto const start = take(4);
    if (std::string_view(reinterpret_cast<char const*>(start.data()), 4) != magic)
      fail(0, "it does not begin with GGUF: not a file of that format");
    if (auto const found = number<std::uint32_t>(); found != version)
      fail(4, text("it has version ", found, " of the format, in this byte order; version ", version, " is read"));
    auto const tensors = number<std::uint64_t>(), values = number<std::uint64_t>();
    if (tensors > most_tensors) fail(8, text("it has ", tensors, " tensors; at most ", most_tensors, " are read"));
    if (values > most_tensors) fail(16, text("it has ", values, " values; at most ", most_tensors, " are read"));
    header out;
    std::set<std::string, std::less<>> names;
    for (std::uint64_t i = 0; i < values; ++i) {
      auto const at = at_;
      auto key = letters();
      if (!names.insert(key).second) fail(at, text("the key \"", key.substr(0, 80), "\" is there twice"));
      out.notes.emplace_back(std::move(key), content());
    }
    if (auto const* const given = find(out.notes, alignment_key)) {
      auto const* const bytes = std::get_if<std::uint32_t>(given);
      if (bytes == nullptr || !std::has_single_bit(*bytes))
        fail(at_, text(alignment_key, " is not a power of two of type UINT32"));
      out.alignment = *bytes;
    }
    names.clear();
    for (std::uint64_t i = 0; i < tensors; ++i) {
      auto const at = at_;
      out.entries.push_back(tensor());
      auto const& name = out.entries.back().name;
      if (!names.insert(name).second) fail(at, text("the tensor \"", name.substr(0, 80), "\" is there twice"));
    }
    out.data_offset = padded(at_, out.alignment);
    if (tensors == 0) out.data_offset = std::min(out.data_offset, size_);
    if (out.data_offset > size_) fail(at_, "the file ends before its data");
    std::uint64_t end = 0;
    for (auto const& each : out.entries) {
      if (each.begin % out.alignment != 0 || each.begin < end)
        fail(at_, text("the tensor \"", each.name.substr(0, 80), "\" begins at byte ", each.begin,
                       " of the data, which is not aligned or in the tensor before it"));
      end = each.begin + each.bytes;
      if (end > size_ - out.data_offset)
        fail(at_, text("the tensor \"", each.name.substr(0, 80), "\" goes beyond the file"));
    }
    return out;
  }

  entry tensor() {
    entry out;
    auto const at = at_;
    out.name = letters();
    auto const refuse = [&](auto const&... why) {
      fail(at, text("the tensor \"", out.name.substr(0, 80), "\" ", why...));
    };
    auto const rank = number<std::uint32_t>();
    if (rank > static_cast<std::uint32_t>(most_rank)) refuse("has ", rank, " extents; the format has at most 4");
    std::array<std::int64_t, most_rank> extents{};
    for (std::uint32_t i = 0; i < rank; ++i) extents[rank - 1 - i] = number<std::int64_t>();
    for (std::uint32_t i = 0; i < rank; ++i) {
      if (!out.extents.takes(extents[i])) refuse("has an extent ", extents[i], ", which is below 0 or too large");
      out.extents.push_back(extents[i]);
    }
    auto const type = number<std::uint32_t>();
    auto const known =
        std::find_if(kinds.begin(), kinds.end(), [&](auto each) { return static_cast<std::uint32_t>(each) == type; });
    if (known == kinds.end())
      refuse("is of kind ", type, " of ggml; F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1 and Q4_0 are read");
    out.type = *known;
    out.begin = number<std::uint64_t>();
    auto const bytes = tensor_bytes(out.type, out.extents);
    if (!bytes || out.begin >> 62 != 0)
      refuse("of kind ", name_of(out.type), " and shape ", to_string(out.extents),
             " has rows that are not whole blocks, or is too large");
    out.bytes = *bytes;
    return out;
  }

  std::span<std::byte const> start_;
  std::uint64_t size_;
  std::string const& path_;
  std::uint64_t at_ = 0;
};

[[nodiscard]] TRIREME_BODY header read_header(file const& from) {
  auto const size = from.size();
  std::vector<std::byte> start;
  for (std::uint64_t bytes = std::uint64_t{1} << 20;; bytes *= 4) {
    auto const had = start.size();
    start.resize(static_cast<std::size_t>(std::min(bytes, size)));
    from.read(had, std::span(start).subspan(had));
    if (auto out = parse_header(start, size, from.path())) return std::move(*out);
  }
}

[[nodiscard]] TRIREME_BODY std::uint64_t alignment_in(metadata const& notes) {
  auto const* const given = find(notes, alignment_key);
  if (given == nullptr) return 32;
  auto const* const bytes = std::get_if<std::uint32_t>(given);
  if (bytes == nullptr || !std::has_single_bit(*bytes))
    throw config_error(text("trireme::formats::gguf: ", alignment_key, " is a power of two of type std::uint32_t"));
  return *bytes;
}

/// Sets the position of each entry's data.
TRIREME_BODY void assign_offsets(std::vector<entry>& entries, std::uint64_t alignment, std::string const& path) {
  std::uint64_t end = 0;
  for (auto& each : entries) {
    auto const bytes = tensor_bytes(each.type, each.extents);
    if (!bytes || end >> 62 != 0 || each.extents.rank() > most_rank) {
      throw config_error(text("trireme::formats::gguf: ", path, ": the tensor \"", each.name.substr(0, 80),
                              "\" of shape ", to_string(each.extents), " cannot be ", name_of(each.type),
                              ": rows are whole blocks of ", block_elements(each.type), ", and at most ", most_rank,
                              " extents"));
    }
    each.begin = end;
    each.bytes = *bytes;
    end = padded(end + *bytes, alignment);
  }
}

[[nodiscard]] TRIREME_BODY std::string print_header(metadata const& notes, std::vector<entry> const& entries,
                                                    std::uint64_t alignment, std::uint64_t& file_bytes,
                                                    std::string const& path) {
  std::string out(magic);
  put(out, version);
  put(out, std::uint64_t{entries.size()});
  put(out, std::uint64_t{notes.size()});
  for (auto const& [key, content] : notes) {
    put_text(out, key);
    if (content.index() >= scalars) put(out, array_type);
    put(out, type_number(content.index()));
    std::visit([&](auto const& each) { put_value(out, each); }, content);
  }
  for (auto const& each : entries) {
    put_text(out, each.name);
    put(out, static_cast<std::uint32_t>(each.extents.rank()));
    for (int axis = each.extents.rank() - 1; axis >= 0; --axis) put(out, each.extents[axis]);
    put(out, static_cast<std::uint32_t>(each.type));
    put(out, each.begin);
  }
  out.append(padded(out.size(), alignment) - out.size(), '\0');
  file_bytes = out.size() + (entries.empty() ? 0 : padded(entries.back().begin + entries.back().bytes, alignment));
  try {  // the reader must accept it: this finds names that are there twice, and a header that is too large
    static_cast<void>(parse_header(std::as_bytes(std::span(out)), file_bytes, path));
  } catch (format_error const& problem) {
    throw config_error(text("trireme::formats::gguf: cannot write this header: ", problem.what()));
  }
  return out;
}

}  // namespace detail

TRIREME_BODY std::optional<header> parse_header(std::span<std::byte const> start, std::uint64_t file_size,
                                                std::string const& path) {
  return detail::header_parser(start, file_size, path).parse();
}

TRIREME_BODY reader::reader(std::string path, file_system& files)
    : file_(std::move(path), file::access::read, files), header_(detail::read_header(file_)) {}

TRIREME_BODY entry const& reader::at(std::string_view name) const {
  for (auto const& each : header_.entries) {
    if (each.name == name) return each;
  }
  throw config_error(text("trireme::formats::gguf: ", path(), " has no tensor named \"", name, "\""));
}

TRIREME_BODY void reader::read(entry const& from, std::uint64_t first, std::span<std::byte> to) const {
  if (first > from.bytes || to.size() > from.bytes - first) {
    throw config_error(text("trireme::formats::gguf: ", path(), ": tensor \"", from.name, "\" has ", from.bytes,
                            " bytes; asked for ", to.size(), " from byte ", first, " on"));
  }
  file_.read(header_.data_offset + from.begin + first, to);
}

TRIREME_BODY void reader::read(entry const& from, std::int64_t first, std::span<float> to) const {
  auto const each = block_elements(from.type);
  auto const count = static_cast<std::int64_t>(to.size());
  if (first < 0 || first > from.extents.size() || count > from.extents.size() - first || first % each != 0 ||
      count % each != 0) {
    throw config_error(text("trireme::formats::gguf: ", path(), ": tensor \"", from.name, "\" has ",
                            from.extents.size(), " numbers in blocks of ", each, "; asked for ", count,
                            " from element ", first, " on"));
  }
  constexpr std::int64_t most = std::int64_t{1} << 16;
  std::vector<std::byte> stored;
  for (std::int64_t at = 0; at < count; at += most) {
    auto const n = std::min(most, count - at);
    stored.resize(static_cast<std::size_t>(n / each * block_bytes(from.type)));
    read(from, static_cast<std::uint64_t>((first + at) / each * block_bytes(from.type)), std::span(stored));
    dequantize(from.type, stored, to.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n)));
  }
}

TRIREME_BODY writer::writer(std::string const& path, metadata const& notes, std::vector<entry> entries,
                            file_system& files)
    : path_(path),
      alignment_(detail::alignment_in(notes)),
      entries_((detail::assign_offsets(entries, alignment_, path), std::move(entries))),
      header_(detail::print_header(notes, entries_, alignment_, file_bytes_, path)),
      file_(path, files) {
  file_.write(std::as_bytes(std::span(header_)));
  header_ = {};
  skip_written();
}

/// Pads tensors that are complete, up to the one that is not.
TRIREME_BODY void writer::skip_written() {
  while (current_ < entries_.size() && written_ == entries_[current_].bytes) {
    std::vector<std::byte> const zeros(detail::padded(written_, alignment_) - written_);
    file_.write(zeros);
    ++current_;
    written_ = 0;
  }
}

TRIREME_BODY void writer::write(std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    if (current_ == entries_.size()) {
      throw config_error(
          text("trireme::formats::gguf: ", path_, ": ", how_many(bytes.size(), "byte"), " more than its tensors have"));
    }
    auto const part =
        static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), entries_[current_].bytes - written_));
    file_.write(bytes.first(part));
    written_ += part;
    bytes = bytes.subspan(part);
    skip_written();
  }
}

TRIREME_BODY void writer::write(std::span<float const> values) {
  constexpr std::size_t most = std::size_t{1} << 16;
  while (!values.empty()) {
    if (current_ == entries_.size()) {
      throw config_error(text("trireme::formats::gguf: ", path_, ": ", how_many(values.size(), "number"),
                              " more than its tensors have"));
    }
    auto const type = entries_[current_].type;
    auto const elements = static_cast<std::size_t>(block_elements(type));
    auto const bytes = static_cast<std::uint64_t>(block_bytes(type));
    auto const left = (entries_[current_].bytes - written_) / bytes * elements;
    auto const part = std::min({values.size(), left, most});
    converted_.resize(part / elements * static_cast<std::size_t>(bytes));
    quantize(type, values.first(part), converted_);
    write(std::span<std::byte const>(converted_));
    values = values.subspan(part);
  }
}

TRIREME_BODY void writer::finish() {
  if (current_ < entries_.size()) {
    throw config_error(text("trireme::formats::gguf: ", path_, ": the tensor \"", entries_[current_].name, "\" has ",
                            written_, " of its ", how_many(entries_[current_].bytes, "byte")));
  }
  file_.publish();
}

}  // namespace trireme::formats::gguf

#endif  // TRIREME_FORMATS_GGUF_IPP_INCLUDED
