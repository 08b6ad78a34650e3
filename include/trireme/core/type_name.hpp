#pragma once

#include <string>
#include <string_view>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// The name of a type as the compiler prints it, for messages.
template <class T>
[[nodiscard]] constexpr std::string_view type_name() noexcept {
  std::string_view const full = __PRETTY_FUNCTION__;  // "... [with T = x; ...]" or "... [T = x]"
  auto const first = full.find("T = ") + 4;
  return full.substr(first, full.find_first_of(";]", first) - first);
}

/// The text form of a description: its to_string, else the name of its type.
template <class T>
[[nodiscard]] std::string describe(T const& description) {
  if constexpr (requires { to_string(description); }) {
    return to_string(description);
  } else {
    return std::string(type_name<T>());
  }
}

}  // namespace trireme
