#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"

namespace trireme::data::detail {

/// The first part of a source, to train on: 1 - the held-out fraction, which is rounded to millionths, so that 0.1 cuts
/// at exactly floor(count * 9 / 10).
///
/// Errors   config_error unless the fraction is in (0, 1) and neither part is empty.
class training_part {
 public:
  /// @param who  the public name with which the message begins.
  training_part(double held_out_fraction, std::string_view who) {
    auto const millionths = held_out_fraction > 0 && held_out_fraction < 1
                                ? static_cast<std::int64_t>(std::llround(held_out_fraction * double{whole}))
                                : 0;
    if (millionths < 1 || millionths >= whole) {
      throw config_error(text(who, ": a held-out fraction of ", held_out_fraction,
                              " leaves one of the two parts empty: choose a fraction between 0.000001 and 0.999999"));
    }
    kept_ = whole - millionths;
  }
  /// floor(count * part), without overflow.
  [[nodiscard]] std::int64_t of(std::int64_t count) const noexcept {
    return count / whole * kept_ + count % whole * kept_ / whole;
  }

 private:
  static constexpr std::int64_t whole = 1'000'000;
  std::int64_t kept_ = whole;
};

}  // namespace trireme::data::detail
