#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/core/error.hpp"

namespace trireme::formats::json {

class value;

/// Limits on a text for parse().
struct limits {
  std::size_t depth = 32;  ///< nested arrays and objects
  std::size_t values = std::size_t{1} << 20;
  std::size_t string_bytes = std::size_t{1} << 24;
};

/// A named value of an object. (A template because a value contains members, and a member a value.)
template <class Value>
struct basic_member {
  std::string key;
  Value content;
  friend bool operator==(basic_member const&, basic_member const&) = default;
};
using member = basic_member<value>;

using array = std::vector<value>;
using object = std::vector<member>;  ///< in the order of the text

/// A JSON value, which parse() returns and to_string() prints.
///
/// Integers stay integers (int64, or uint64 above that range) and are not converted to double; an object keeps its
/// order. A value from a file stores its position there, so that an error can report it: the accessors throw
/// format_error with path and byte.
///
/// Threads  as a std::vector.
class value {
 public:
  value() noexcept {}                                            // NOLINT(modernize-use-equals-default)
  value(std::nullptr_t) noexcept {}                              // NOLINT(google-explicit-constructor)
  template <std::same_as<bool> Truth>                            // a pointer does not convert to bool
  value(Truth truth) : boolean_(truth), kind_(kind::boolean) {}  // NOLINT(google-explicit-constructor)
  template <std::signed_integral Integer>
  value(Integer number) : small_(number), kind_(kind::small) {}  // NOLINT(google-explicit-constructor)
  template <std::unsigned_integral Integer>
  requires(!std::same_as<Integer, bool>) value(Integer number) {  // NOLINT(google-explicit-constructor)
    if (std::uint64_t{number} > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      large_ = number, kind_ = kind::large;
    } else {
      small_ = static_cast<std::int64_t>(number), kind_ = kind::small;
    }
  }
  template <std::floating_point Float>
  value(Float number) : real_(static_cast<double>(number)), kind_(kind::real) {}  // NOLINT(google-explicit-constructor)
  value(std::string text) : string_(std::move(text)), kind_(kind::string) {}      // NOLINT(google-explicit-constructor)
  value(std::string_view text) : string_(text), kind_(kind::string) {}            // NOLINT(google-explicit-constructor)
  value(char const* text) : string_(text), kind_(kind::string) {}                 // NOLINT(google-explicit-constructor)
  value(json::array elements);                                                    // NOLINT(google-explicit-constructor)
  value(json::object members);                                                    // NOLINT(google-explicit-constructor)

  value(value const& other);
  value(value&& other) noexcept;
  value& operator=(value const& other);
  value& operator=(value&& other) noexcept;
  ~value();

  /// Makes an object from members: `json::value::make({{"step", 7}, {"loss", 0.5}})`.
  static value make(std::initializer_list<member> members);

  [[nodiscard]] bool is_null() const noexcept { return kind_ == kind::null; }
  [[nodiscard]] bool is_bool() const noexcept { return kind_ == kind::boolean; }
  [[nodiscard]] bool is_integer() const noexcept { return kind_ == kind::small || kind_ == kind::large; }
  [[nodiscard]] bool is_negative() const noexcept { return kind_ == kind::small && small_ < 0; }
  [[nodiscard]] bool is_number() const noexcept { return is_integer() || kind_ == kind::real; }
  [[nodiscard]] bool is_string() const noexcept { return kind_ == kind::string; }
  [[nodiscard]] bool is_array() const noexcept { return kind_ == kind::elements; }
  [[nodiscard]] bool is_object() const noexcept { return kind_ == kind::members; }

  // Each throws format_error if the value is something else.
  [[nodiscard]] bool as_bool() const { return of(kind::boolean, boolean_, "true or false"); }
  [[nodiscard]] std::int64_t as_int64() const { return of(kind::small, small_, "an integer of 64 bits"); }
  [[nodiscard]] std::uint64_t as_uint64() const {
    if (kind_ == kind::small && small_ >= 0) return static_cast<std::uint64_t>(small_);
    return of(kind::large, large_, "an integer that is not negative");
  }
  [[nodiscard]] double as_double() const {
    if (kind_ == kind::small) return static_cast<double>(small_);
    if (kind_ == kind::large) return static_cast<double>(large_);
    return of(kind::real, real_, "a number");
  }
  [[nodiscard]] std::string const& as_string() const { return of(kind::string, string_, "a string"); }
  [[nodiscard]] json::array const& as_array() const { return of(kind::elements, array_, "an array"); }
  [[nodiscard]] json::object const& as_object() const { return of(kind::members, object_, "an object"); }

  /// The member of that name, or nullptr; linear in the number of members.
  [[nodiscard]] value const* find(std::string_view key) const;
  /// The member of that name; throws format_error if there is none.
  [[nodiscard]] value const& at(std::string_view key) const;
  /// Adds or replaces a member of an object (null becomes an empty object first).
  value& set(std::string key, value to);
  /// Appends an element to an array (null becomes an empty array first).
  value& push_back(value element);

  /// The position of the value in its file, in bytes; 0 for a value made in the program.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  /// Throws format_error at this value's position: for checks of the caller.
  [[noreturn]] void fail(std::string_view reason) const {
    throw format_error(source_ == nullptr ? "trireme::formats::json" : *source_, offset_, reason);
  }
  /// Stores the value's position.
  void locate(std::shared_ptr<std::string const> source, std::uint64_t offset) noexcept {
    source_ = std::move(source);
    offset_ = offset;
  }

  /// Equal content; positions do not count.
  friend bool operator==(value const& a, value const& b);

 private:
  // Which member of the union it has. (With a std::variant g++ took 3 % more memory for trireme.hpp.)
  enum class kind : std::uint8_t { null, boolean, small, large, real, string, elements, members };
  template <class T>
  [[nodiscard]] T const& of(kind wanted, T const& content, std::string_view name) const {
    if (kind_ == wanted) return content;
    fail(text("expected ", name));
  }
  void clear() noexcept;            // makes it null
  void fill(value const& from);     // of null
  void take(value& from) noexcept;  // of null

  union {
    bool boolean_;
    std::int64_t small_;
    std::uint64_t large_;  ///< larger than any std::int64_t
    double real_;
    std::string string_;
    json::array array_;
    json::object object_;
  };
  kind kind_ = kind::null;
  std::shared_ptr<std::string const> source_;
  std::uint64_t offset_ = 0;
};

/// Reads a JSON text (RFC 8259).
///
/// Strict: UTF-8 in shortest form, no duplicate members, no trailing comma, nothing after the value. An integer of more
/// than 64 bits becomes a double; a number outside the range of double is refused. Memory: at most 100 bytes per value,
/// and each value takes at least two bytes of text.
///
/// Errors   throws format_error(path, byte, reason).
///
/// @param path  the name of the text in errors.
[[nodiscard]] value parse(std::string_view text, std::string_view path, limits const& most = {});

/// The text of a value, which parse() reads as an equal value.
///
/// Numerics doubles in their shortest exact form, with a decimal point so that they stay doubles; a double that is not
///          finite becomes null, because JSON cannot represent it.
/// Errors   throws config_error if nested more than 32 deep. Strings are written without conversion and should be
///          UTF-8.
///
/// @param indent  spaces per level, or -1 for one line without spaces.
[[nodiscard]] std::string to_string(value const& content, int indent = -1);

}  // namespace trireme::formats::json

#ifndef TRIREME_COMPILED
#include "trireme/formats/json.ipp"
#endif
