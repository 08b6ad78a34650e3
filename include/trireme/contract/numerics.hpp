#pragma once

#include <cstdint>
#include <span>

#include "trireme/core/tensor.hpp"

namespace trireme {

/// A gradient that is still a sum: g = scale * (terms[0] + terms[1] + ...), added in order. Ranks that share an
/// address space hand their gradients to the optimizer like this, so the reduced gradient is never written.
template <class G, class Space>
struct gradient_terms {
  std::span<tensor_view<G const, Space> const> terms;
  double scale = 1;
};

/// A sum of losses and how many of them were summed.
struct loss_sum {
  double sum = 0;
  std::int64_t count = 0;
  [[nodiscard]] double mean() const noexcept { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
  loss_sum& operator+=(loss_sum const& other) noexcept {
    sum += other.sum;
    count += other.count;
    return *this;
  }
};

}  // namespace trireme
