#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"

namespace trireme::nn::detail {

/// Throws config_error for the first size of a model's description that is below 1.
inline void expect_positive(char const* model, std::initializer_list<std::pair<char const*, std::int64_t>> sizes) {
  for (auto const& [what, number] : sizes)
    if (number < 1)
      throw config_error(text("trireme::nn::", model, ": ", what, " is ", number, "; it must be at least 1"));
}

}  // namespace trireme::nn::detail
