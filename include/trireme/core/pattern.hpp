#pragma once

#include <cstddef>
#include <string_view>

namespace trireme {

/// Whether a name is what a pattern says: * stands for any letters, ? for one.
[[nodiscard]] constexpr bool matches(std::string_view pattern, std::string_view name) noexcept {
  std::size_t p = 0, n = 0, star = pattern.npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != pattern.npos) {  // the star takes one letter more
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  return pattern.substr(p).find_first_not_of('*') == pattern.npos;
}
/// Whether it is what one of several patterns says, which are separated by spaces.
[[nodiscard]] constexpr bool matches_any(std::string_view patterns, std::string_view name) noexcept {
  while (!patterns.empty()) {
    auto const space = patterns.find(' ');
    if (auto const one = patterns.substr(0, space); !one.empty() && matches(one, name)) return true;
    patterns.remove_prefix(space == patterns.npos ? patterns.size() : space + 1);
  }
  return false;
}

}  // namespace trireme
