#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"

#include "trireme/core/dialect.hpp"

namespace trireme {

/// Whether a name matches a pattern: * matches any characters, ? matches one.
[[nodiscard]] constexpr bool matches(std::string_view pattern, std::string_view name) noexcept {
  std::size_t p = 0, n = 0, star = pattern.npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != pattern.npos) {  // the star takes one more character
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  return pattern.substr(p).find_first_not_of('*') == pattern.npos;
}
/// Whether it matches one of several patterns, which are separated by spaces.
[[nodiscard]] constexpr bool matches_any(std::string_view patterns, std::string_view name) noexcept {
  while (!patterns.empty()) {
    auto const space = patterns.find(' ');
    if (auto const one = patterns.substr(0, space); !one.empty() && matches(one, name)) return true;
    patterns.remove_prefix(space == patterns.npos ? patterns.size() : space + 1);
  }
  return false;
}

/// Patterns of a description, separated by spaces. A description that has `for_each_pattern(f)`, which calls
/// f(name_pattern) for each member with patterns, gives an error if one of them matches no name.
struct name_pattern {
  std::string what;      ///< the member: "optim::groups: .names"
  std::string patterns;  ///< of the member
  /// Whether one pattern is meant for a name.
  bool (*fits)(std::string_view pattern, std::string_view name) = [](auto pattern, auto name) {
    return matches(pattern, name);
  };
  std::string before = "nothing in the model matches ", after{};  ///< text around the pattern in the error
};
template <class D>
concept has_patterns = requires(D const& description) {
  description.for_each_pattern([](name_pattern const&) {});
};

namespace detail {

template <class F>
void for_each_word(std::string_view words, F&& f) {
  while (!words.empty()) {
    auto const space = std::min(words.find(' '), words.size());
    if (space > 0) f(words.substr(0, space));
    words.remove_prefix(std::min(space + 1, words.size()));
  }
}

/// The number of characters to change for a name to match a pattern: 0 if it does. Characters matched by * cost
/// nothing.
[[nodiscard]] inline std::size_t letters_between(std::string_view pattern, std::string_view name) {
  std::vector<std::size_t> row(name.size() + 1), next(row.size());
  for (std::size_t n = 0; n < row.size(); ++n) row[n] = n;
  for (char const p : pattern) {
    next[0] = row[0] + (p == '*' ? 0 : 1);
    for (std::size_t n = 1; n < row.size(); ++n) {
      auto const kept = row[n - 1] + (p == '?' || p == name[n - 1] ? 0 : 1);
      next[n] = p == '*' ? std::min(row[n], next[n - 1]) : std::min({kept, row[n] + 1, next[n - 1] + 1});
    }
    std::swap(row, next);
  }
  return row.back();
}

/// The names nearest to a pattern, or to its suffix after a dot, as text for a message.
[[nodiscard]] inline std::string near_names(std::string_view pattern, std::vector<std::string> const& names) {
  std::vector<std::pair<std::size_t, std::string>> all;
  auto const behind_dot = text("*.", pattern);
  for (auto const& name : names)
    all.emplace_back(std::min(letters_between(pattern, name), letters_between(behind_dot, name)), name);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 3); ++i)
    out += text(i == 0 ? "" : ", ", "\"", all[i].second, "\"");
  return out;
}

}  // namespace detail

/// Throws config_error if one of some patterns matches no name; the error lists the nearest names.
inline void expect_matches(name_pattern const& all, std::vector<std::string> const& names) {
  detail::for_each_word(all.patterns, [&](std::string_view one) {
    if (std::any_of(names.begin(), names.end(), [&](auto const& name) { return all.fits(one, name); })) return;
    throw config_error(text("trireme::", all.what, ": ", all.before, "\"", one, "\"", all.after,
                            "; the nearest names are ", detail::near_names(one, names)));
  });
}

}  // namespace trireme
