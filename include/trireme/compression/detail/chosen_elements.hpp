#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "trireme/core/address.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"

namespace trireme::compression::detail {

inline void expect_ratio(std::string_view name, float ratio) {
  if (!(ratio > 0 && ratio <= 1))
    throw config_error(text("trireme::compression::", name, ": ratio ", ratio, " is not in (0, 1]"));
}

/// The number of elements kept of n: ceil(ratio * n), at least 1.
[[nodiscard]] inline std::int64_t kept_elements(float ratio, std::int64_t n) {
  auto const wanted = static_cast<std::int64_t>(std::ceil(static_cast<double>(ratio) * static_cast<double>(n)));
  return std::clamp<std::int64_t>(wanted, std::min<std::int64_t>(n, 1), n);
}

/// A payload of k (index, value) pairs: the indices, then the values. Values, and the next payload, start at a multiple
/// of 8 bytes for every k.
template <class Gradient, class Space>
struct chosen_elements {
  tensor_view<std::int32_t, Space> indices;
  tensor_view<Gradient, Space> values;

  chosen_elements(tensor_view<std::byte, Space> payload, std::int64_t k)
      : indices(elements_at<std::int32_t>(payload.address()), shape{k}),
        values(elements_at<Gradient>(payload.address() + values_offset(k)), shape{k}) {}
  [[nodiscard]] static std::int64_t bytes(std::int64_t k) {
    return round_up(values_offset(k) + k * static_cast<std::int64_t>(sizeof(Gradient)));
  }

 private:
  static std::int64_t round_up(std::int64_t bytes) { return (bytes + 7) / 8 * 8; }
  static std::int64_t values_offset(std::int64_t k) { return round_up(k * 4); }
};

}  // namespace trireme::compression::detail
