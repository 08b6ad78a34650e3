#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/bootstrap.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/error.hpp"
#include "trireme/ops/level.hpp"

namespace trireme {

namespace detail {

inline void expect_word(comm::bootstrap::lookup const& variable, char const* name,
                        std::vector<std::string_view> const& known) {
  auto const value = variable(name).value_or("");
  if (value.empty() || std::find(known.begin(), known.end(), value) != known.end()) return;
  std::string list;
  for (std::size_t i = 0; i < known.size(); ++i) {
    list += text(i == 0 ? "" : i + 1 == known.size() ? " or " : ", ", known[i]);
  }
  throw config_error(text("trireme::check_environment: the environment variable ", name, " is \"", value.substr(0, 64),
                          "\"; it is one of ", list, ", or not set"));
}

}  // namespace detail

/// Rejects values of the environment variables TRIREME_ASSERTIONS, TRIREME_CPU and TRIREME_LOG that are not valid.
///
/// Why: a typing mistake in one of them would otherwise silently leave its default in force. make_trainer and
/// make_exchange call it; a program may call it earlier.
///
/// Errors   config_error that names the variable, its value and the valid values.
inline void check_environment(comm::bootstrap::lookup const& variable = comm::bootstrap::environment_variable) {
  using enum assertion_level;
  detail::expect_word(variable, "TRIREME_ASSERTIONS",
                      {name_of(none), name_of(light), name_of(normal), name_of(communication)});
  detail::expect_word(variable, "TRIREME_CPU", ops::level_words());
  detail::expect_word(variable, "TRIREME_LOG", {"0", "1"});
}

}  // namespace trireme
