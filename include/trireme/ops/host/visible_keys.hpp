#pragma once

#include <cstdint>

#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// Attention masks computed from tokens.
struct host_visible_keys {
  /// For each position of each sample the first position that it may attend to, and one past the last: none of the
  /// padding at either end of the sample, and none of another document.
  ///
  /// Shapes   seen (B, T, 2), tokens (B, T).
  /// Errors   config_error for padding between words. assertion_error (light) if the sizes do not fit.
  static void visible_keys(tensor_view<std::int32_t, host> seen, tensor_view<std::int32_t const, host> tokens,
                           token_mask const& how) {
    detail::same_size("visible_keys", seen.size(), 2 * tokens.size());
    auto const context = tokens.extent(1);
    for (std::int64_t sample = 0; sample < tokens.extent(0); ++sample) {
      auto const* const words = raw(tokens) + sample * context;
      auto* const limits = raw(seen) + 2 * sample * context;
      std::int64_t first = 0, behind = context;
      while (first < context && how.is_padding(words[first])) ++first;
      while (behind > first && how.is_padding(words[behind - 1])) --behind;
      for (std::int64_t begin = 0, end = 0; begin < context; begin = end) {  // one document after the other
        do {
          if (end >= first && end < behind && how.is_padding(words[end])) {
            throw config_error(text("trireme::nn::attend: sample ", sample, " of a micro-batch has the padding token ",
                                    how.padding, " at position ", end,
                                    ", between words; pad samples at their ends only"));
          }
        } while (!how.is_separator(words[end++]) && end < context);
        for (auto at = begin; at < end; ++at) {
          limits[2 * at] = static_cast<std::int32_t>(begin < first ? first : begin);
          limits[2 * at + 1] = static_cast<std::int32_t>(end < behind ? end : behind);
        }
      }
    }
  }
};

}  // namespace trireme::ops
