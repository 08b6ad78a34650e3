#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"

namespace trireme::nn::detail {

/// Throws config_error for the first size of a model's description that is below 1.
inline void expect_positive(char const* model, std::initializer_list<std::pair<char const*, std::int64_t>> sizes) {
  for (auto const& [what, number] : sizes)
    if (number < 1)
      throw config_error(text("trireme::nn::", model, ": ", what, " is ", number, "; it must be at least 1"));
}

/// Throws config_error unless the channels of a model make so many heads of one width.
inline void expect_heads(char const* model, std::int64_t channels, std::int64_t heads) {
  if (channels % heads == 0) return;
  throw config_error(text("trireme::nn::", model, ": ", how_many(channels, "channel"),
                          agreeing(channels, " is", " are"), " not divisible by ", how_many(heads, "head")));
}

/// Throws config_error unless a dropout is in [0, 1).
inline void expect_dropout(char const* model, double dropout) {
  if (dropout >= 0 && dropout < 1) return;
  throw config_error(text("trireme::nn::", model, ": dropout ", dropout, " is not in [0, 1)"));
}

}  // namespace trireme::nn::detail
