#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace trireme {

/// A bfloat16 number: the upper half of a float. Storage only; arithmetic happens in float.
///
/// Numerics  converts from float by rounding to nearest, ties to even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  constexpr explicit bfloat16(float value) noexcept {
    auto const raw = std::bit_cast<std::uint32_t>(value);
    bool const nan = (raw & 0x7fff'ffffU) > 0x7f80'0000U;
    bits = static_cast<std::uint16_t>(nan ? (raw >> 16) | 0x40U : (raw + 0x7fffU + ((raw >> 16) & 1U)) >> 16);
  }
  constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  constexpr explicit operator double() const noexcept { return static_cast<float>(*this); }
  friend constexpr bool operator==(bfloat16 a, bfloat16 b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }
};

/// The name used in template arguments: `compression::cast<bf16>`.
using bf16 = bfloat16;

/// The element types that tensors, files and messages know.
enum class dtype : std::uint8_t { f64, f32, bf16, i64, i32, u64, u32, i8, u8 };

template <class T>
struct dtype_traits;  // specialised for exactly the element types below

template <>
struct dtype_traits<double> {
  static constexpr dtype value = dtype::f64;
};
template <>
struct dtype_traits<float> {
  static constexpr dtype value = dtype::f32;
};
template <>
struct dtype_traits<bfloat16> {
  static constexpr dtype value = dtype::bf16;
};
template <>
struct dtype_traits<std::int64_t> {
  static constexpr dtype value = dtype::i64;
};
template <>
struct dtype_traits<std::int32_t> {
  static constexpr dtype value = dtype::i32;
};
template <>
struct dtype_traits<std::uint64_t> {
  static constexpr dtype value = dtype::u64;
};
template <>
struct dtype_traits<std::uint32_t> {
  static constexpr dtype value = dtype::u32;
};
template <>
struct dtype_traits<std::int8_t> {
  static constexpr dtype value = dtype::i8;
};
template <>
struct dtype_traits<std::uint8_t> {
  static constexpr dtype value = dtype::u8;
};
template <>
struct dtype_traits<std::byte> {
  static constexpr dtype value = dtype::u8;
};

template <class T>
inline constexpr dtype dtype_of = dtype_traits<T>::value;

template <class T>
concept element = requires {
  dtype_traits<T>::value;
};

/// An element that arithmetic makes sense on.
template <class T>
concept arithmetic_element = element<T> && !std::is_same_v<T, std::byte>;

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(dtype type) noexcept {
  switch (type) {
    case dtype::f64:
    case dtype::i64:
    case dtype::u64:
      return 8;
    case dtype::f32:
    case dtype::i32:
    case dtype::u32:
      return 4;
    case dtype::bf16:
      return 2;
    case dtype::i8:
    case dtype::u8:
      return 1;
  }
  return 0;
}

/// The name that safetensors files use, which is also ours in messages.
[[nodiscard]] constexpr std::string_view name_of(dtype type) noexcept {
  switch (type) {
    case dtype::f64:
      return "F64";
    case dtype::f32:
      return "F32";
    case dtype::bf16:
      return "BF16";
    case dtype::i64:
      return "I64";
    case dtype::i32:
      return "I32";
    case dtype::u64:
      return "U64";
    case dtype::u32:
      return "U32";
    case dtype::i8:
      return "I8";
    case dtype::u8:
      return "U8";
  }
  return "?";
}

}  // namespace trireme
