#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/formats/npy.hpp"

namespace trireme::data::detail {

/// The element type of samples that holds such numbers as they are; none of 16-bit integers and booleans.
[[nodiscard]] inline std::optional<dtype> dtype_of_number(formats::npy::number type) noexcept {
  using enum formats::npy::number;
  switch (type) {
    case f16:
      return dtype::f16;
    case f32:
      return dtype::f32;
    case f64:
      return dtype::f64;
    case i8:
      return dtype::i8;
    case i32:
      return dtype::i32;
    case i64:
      return dtype::i64;
    case u8:
      return dtype::u8;
    case u32:
      return dtype::u32;
    case u64:
      return dtype::u64;
    case i16:
    case u16:
    case boolean:
      break;
  }
  return std::nullopt;
}

/// What is done to the numbers of arrays on their way to samples. Messages begin with `who`, a public name; `what` is
/// features or targets.
class number_cast {
 public:
  number_cast(char const* who, std::optional<dtype> as, char const* what) : who_(who), what_(what), as_(as) {
    if (as && *as != dtype::f32 && *as != dtype::i32) {
      throw config_error(text(who_, ": .", what, "_as = ", name_of(*as), ", but numbers are converted to f32 or i32"));
    }
  }
  /// Says what the arrays hold, the first of which `path` names.
  void of(formats::npy::number type, std::string const& path) {
    auto const stored = dtype_of_number(type);
    if (!as_ && !stored) {
      throw config_error(text(who_, ": ", path, " holds ", formats::npy::name_of(type),
                              ", which no model takes; convert it by .", what_, "_as = dtype::f32 or dtype::i32"));
    }
    if (as_ == dtype::i32 && stored && (*stored == dtype::f16 || *stored == dtype::f32 || *stored == dtype::f64)) {
      throw config_error(text(who_, ": ", path, " holds ", formats::npy::name_of(type),
                              ", which is not converted to i32; ask for f32, or save integers"));
    }
    type_ = type;
    converts_ = as_ && stored != as_;
    given_ = as_ ? *as_ : *stored;
  }
  [[nodiscard]] dtype given() const noexcept { return given_; }
  [[nodiscard]] bool converts() const noexcept { return converts_; }

  /// @param refuse  is called with a number that the type cannot hold, and throws. Infinities and NaN stay.
  template <class Refuse>
  void convert(std::span<unsigned char const> stored, void* to, Refuse const& refuse) const {
    given_ == dtype::f32 ? convert_to<float>(stored, to, refuse) : convert_to<std::int32_t>(stored, to, refuse);
  }

 private:
  template <class To, class Refuse>
  void convert_to(std::span<unsigned char const> stored, void* to, Refuse const& refuse) const {
    using enum formats::npy::number;
    switch (type_) {
      case f16:
        return convert_from<float16, To>(stored, to, refuse);
      case f32:
        return convert_from<float, To>(stored, to, refuse);
      case f64:
        return convert_from<double, To>(stored, to, refuse);
      case i8:
        return convert_from<std::int8_t, To>(stored, to, refuse);
      case i16:
        return convert_from<std::int16_t, To>(stored, to, refuse);
      case i32:
        return convert_from<std::int32_t, To>(stored, to, refuse);
      case i64:
        return convert_from<std::int64_t, To>(stored, to, refuse);
      case u8:
      case boolean:
        return convert_from<std::uint8_t, To>(stored, to, refuse);
      case u16:
        return convert_from<std::uint16_t, To>(stored, to, refuse);
      case u32:
        return convert_from<std::uint32_t, To>(stored, to, refuse);
      case u64:
        return convert_from<std::uint64_t, To>(stored, to, refuse);
    }
  }
  template <class From, class To, class Refuse>
  static void convert_from(std::span<unsigned char const> stored, void* to, Refuse const& refuse) {
    if constexpr (std::is_same_v<To, float> || std::is_integral_v<From>) {  // of() refuses others
      for (std::size_t i = 0; i * sizeof(From) < stored.size(); ++i) {
        From value{};
        std::memcpy(&value, stored.data() + i * sizeof(From), sizeof(From));
        if constexpr (!std::is_same_v<To, float>) {
          if (!std::in_range<std::int32_t>(value)) refuse(text(value));
        }
        auto const out = static_cast<To>(value);
        if constexpr (std::is_same_v<From, double> && std::is_same_v<To, float>) {
          if (std::isinf(out) && !std::isinf(value)) refuse(text(value));
        }
        std::memcpy(static_cast<unsigned char*>(to) + i * sizeof(To), &out, sizeof(To));
      }
    }
  }

  char const* who_;
  char const* what_;
  std::optional<dtype> as_;
  formats::npy::number type_ = formats::npy::number::f32;
  dtype given_ = dtype::f32;
  bool converts_ = false;
};

/// `, .features_as = trireme::dtype::f32`, or nothing: for to_string() of a description.
[[nodiscard]] inline std::string conversion_field(char const* field, std::optional<dtype> type) {
  if (!type) return {};
  return text(", .", field, " = trireme::dtype::", *type == dtype::f32 ? "f32" : "i32");
}

}  // namespace trireme::data::detail
