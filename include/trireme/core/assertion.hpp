#pragma once

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#include "trireme/core/error.hpp"

namespace trireme {

/// How much is checked at run time; each level contains those before it.
enum class assertion_level {
  none,           ///< nothing
  light,          ///< arguments of public functions, at constant cost
  normal,         ///< anything that costs less than the work it guards (the default)
  communication,  ///< that ranks agree, by one small collective each
};

/// The name of a level, as TRIREME_ASSERTIONS takes it.
[[nodiscard]] constexpr std::string_view name_of(assertion_level level) noexcept {
  switch (level) {
    case assertion_level::none:
      return "none";
    case assertion_level::light:
      return "light";
    case assertion_level::communication:
      return "communication";
    case assertion_level::normal:
      break;
  }
  return "normal";
}

namespace detail {

inline assertion_level assertion_level_from_environment() noexcept {
  char const* value = std::getenv("TRIREME_ASSERTIONS");
  std::string_view const name = value == nullptr ? "" : value;
  for (auto const level : {assertion_level::none, assertion_level::light, assertion_level::communication}) {
    if (name == name_of(level)) return level;
  }
  return assertion_level::normal;
}

inline std::atomic<assertion_level> active_assertion_level{assertion_level_from_environment()};

}  // namespace detail

/// The active level. It is a run-time value (environment variable TRIREME_ASSERTIONS, or the setter below), not a
/// macro: so an inline function is the same in all translation units.
[[nodiscard]] inline assertion_level assertions() noexcept {
  return detail::active_assertion_level.load(std::memory_order_relaxed);
}
inline void assertions(assertion_level level) noexcept {
  detail::active_assertion_level.store(level, std::memory_order_relaxed);
}
[[nodiscard]] inline bool asserts(assertion_level level) noexcept { return assertions() >= level; }

/// Throws assertion_error with `message()` if the level is active and the condition is false. The message is a
/// callable, so that it costs nothing if the condition holds.
template <class Message>
void expects(assertion_level level, bool condition, Message&& message) {
  if (!condition && asserts(level)) throw assertion_error(message());
}

}  // namespace trireme
