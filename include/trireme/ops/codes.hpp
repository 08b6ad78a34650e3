#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/assertion.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/text.hpp"

namespace trireme::ops {

/// Numbers of few bits: a number is its code times the scale of its block. `bits` is 8, 4 or 2 (signed codes of
/// [-levels, levels], levels = 2^(bits - 1) - 1) or 1 (the sign).
///
/// Shapes   n numbers have scales (ceil(n / block)) and codes (64 ceil(n / group)) bytes; group = 512 / bits
///          numbers fill 64 bytes, and a block is whole groups.
struct code_form {
  int bits = 8;
  std::int64_t block = 256;

  [[nodiscard]] constexpr std::int64_t group() const noexcept { return 512 / bits; }
  [[nodiscard]] constexpr std::int64_t scales(std::int64_t n) const noexcept { return (n + block - 1) / block; }
  [[nodiscard]] constexpr std::int64_t code_bytes(std::int64_t n) const noexcept {
    return (n + group() - 1) / group() * 64;
  }
};

/// The random numbers of one call (core/rng.hpp). Equal values give equal numbers.
struct random_stream {
  random_key key{};
  std::uint32_t site = 0;
  std::uint64_t sample = 0;
};

namespace detail {

/// Light check of the sizes of codes.
inline void expect_code_sizes(std::string_view call, code_form const& form, std::int64_t n, std::int64_t scales,
                              std::int64_t codes) {
  expects(assertion_level::light, scales == form.scales(n) && codes == form.code_bytes(n), [&] {
    return text("trireme::ops::", call, ": ", scales, " scales and ", codes, " bytes of codes for ", n,
                " numbers; they have ", form.scales(n), " and ", form.code_bytes(n));
  });
}

/// Element number i of k strata of n elements: [first, end).
struct stratum {
  std::int64_t first = 0, end = 0;
  stratum(std::int64_t n, std::int64_t k, std::int64_t i) : first(i * n / k), end((i + 1) * n / k) {}
  [[nodiscard]] std::int64_t size() const noexcept { return end - first; }
};

}  // namespace detail

}  // namespace trireme::ops
