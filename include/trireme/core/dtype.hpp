#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "trireme/core/dialect.hpp"
#include "trireme/core/exact.hpp"

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
    return exactly_equal(static_cast<float>(a), static_cast<float>(b));
  }
};

/// An IEEE binary16 number: 11 bits of precision up to 65504. Storage only; arithmetic happens in float.
///
/// Numerics  converts from float by rounding to nearest, ties to even; subnormals are kept, NaN stays NaN. The same
///           bits as the conversion instructions of CPUs (F16C) and GPUs.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  constexpr explicit float16(float value) noexcept {
    auto const raw = std::bit_cast<std::uint32_t>(value);
    auto const size = raw & 0x7fff'ffffU;
    std::uint32_t half = 0;
    if (size > 0x7f80'0000U) {  // NaN, made quiet
      half = 0x7e00U | (size >> 13 & 0x3ffU);
    } else if (size >= 0x4780'0000U) {  // 65536 and above; slightly smaller numbers round to infinity below
      half = 0x7c00U;
    } else if (size >= 0x3880'0000U) {  // 2^-14: normal
      half = (size - 0x3800'0000U + 0xfffU + (size >> 13 & 1U)) >> 13;
    } else {  // next to 0.5, a float has the spacing of the subnormals
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) - 0x3f00'0000U;
    }
    bits = static_cast<std::uint16_t>((raw >> 16 & 0x8000U) | half);
  }
  constexpr explicit operator float() const noexcept {
    std::uint32_t const size = bits & 0x7fffU;
    std::uint32_t raw = 0;
    if (size > 0x7c00U) {  // NaN, made quiet
      raw = 0x7fc0'0000U | size << 13;
    } else if (size == 0x7c00U) {
      raw = 0x7f80'0000U;
    } else if (size >= 0x400U) {
      raw = (size << 13) + 0x3800'0000U;
    } else {
      raw = std::bit_cast<std::uint32_t>(static_cast<float>(size) * 0x1p-24F);
    }
    return std::bit_cast<float>((bits & 0x8000U) << 16 | raw);
  }
  constexpr explicit operator double() const noexcept { return static_cast<float>(*this); }
  friend constexpr bool operator==(float16 a, float16 b) noexcept {
    return exactly_equal(static_cast<float>(a), static_cast<float>(b));
  }
};

/// A floating-point type for storage only; arithmetic is in float.
template <class T>
concept storage_float = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

/// The element types of tensors, files and messages.
enum class dtype : std::uint8_t { f64, f32, bf16, f16, i64, i32, u64, u32, i8, u8 };

/// The names used in template arguments: `compression::cast<bf16>`.
using bf16 = bfloat16;
using f16 = float16;

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
struct dtype_traits<float16> {
  static constexpr dtype value = dtype::f16;
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

/// The dtype of a C++ type.
template <class T>
inline constexpr dtype dtype_of = dtype_traits<T>::value;

template <class T>
concept element = requires {
  dtype_traits<T>::value;
};

/// An element type with arithmetic.
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
    case dtype::f16:
      return 2;
    case dtype::i8:
    case dtype::u8:
      return 1;
  }
  return 0;
}

/// The name in safetensors files, also used in messages.
[[nodiscard]] constexpr std::string_view name_of(dtype type) noexcept {
  switch (type) {
    case dtype::f64:
      return "F64";
    case dtype::f32:
      return "F32";
    case dtype::bf16:
      return "BF16";
    case dtype::f16:
      return "F16";
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
