#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/core/cuda_space.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda.hpp"

// What tests need that call a kernel in both memories and compare what it wrote.

namespace compared {

using trireme::cuda;
using trireme::host;
using trireme::shape;
using trireme::tensor_view;

/// The same numbers in host memory and in CUDA memory. In both, `offset` elements lie before them, so that their
/// address need not be aligned.
template <class T>
class pair {
 public:
  pair(shape extents, std::vector<T> numbers, std::int64_t offset = 0)
      : extents_(extents),
        offset_(offset),
        here_(std::move(numbers)),
        there_(shape{offset + static_cast<std::int64_t>(here_.size())}) {
    trireme::ops::on<cuda>::upload(device().flat(), std::span<T const>(here_));
  }

  [[nodiscard]] tensor_view<T, host> on_host() { return {here_.data(), extents_}; }
  [[nodiscard]] tensor_view<T, cuda> device() const {
    return there_.view().flat(offset_, static_cast<std::int64_t>(here_.size())).reshaped(extents_);
  }
  [[nodiscard]] std::vector<T> result() const {
    std::vector<T> all(here_.size());
    trireme::ops::on<cuda>::download(std::span<T>(all), device().flat());
    return all;
  }
  /// The largest difference between both memories, as a share of 1 + the number on the host; infinity if only one of
  /// two numbers is NaN.
  [[nodiscard]] double difference() const {
    auto const got = result();
    double largest = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      auto const a = static_cast<double>(got[i]), b = static_cast<double>(here_[i]);
      if (std::isnan(a) && std::isnan(b)) continue;
      auto const apart = a <= b && a >= b ? 0 : std::abs(a - b) / (1 + std::abs(b));
      largest = std::isnan(apart) ? HUGE_VAL : std::max(largest, apart);
    }
    return largest;
  }

 private:
  shape extents_;
  std::int64_t offset_ = 0;
  std::vector<T> here_;
  trireme::tensor<T, cuda> there_;
};

/// How far results of products and sums may be from the host's: they have its bits, unless its compiler makes one
/// operation of a product and a sum, as it may where the processor has such an operation.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
inline constexpr bool contracts = true;
#else
inline constexpr bool contracts = false;
#endif
template <class T>
inline constexpr double of_contraction = !contracts                             ? 0
                                         : std::is_same_v<T, double>            ? 1e-13
                                         : std::is_same_v<T, float>             ? 1e-5
                                         : std::is_same_v<T, trireme::bfloat16> ? 0.02
                                                                                : 0.002;

/// So many numbers between -3 and 3, of a sequence that `seed` selects.
template <class T>
std::vector<T> numbers(std::int64_t n, std::uint32_t seed) {
  std::vector<T> all(static_cast<std::size_t>(n));
  std::uint32_t state = seed * 2654435761U + 12345U;
  for (auto& each : all) {
    state = state * 1664525U + 1013904223U;
    each = static_cast<T>(static_cast<float>(state >> 16) / 65536.0F * 6.0F - 3.0F);
  }
  return all;
}
template <class T>
pair<T> made(shape const& extents, std::uint32_t seed, std::int64_t offset = 0) {
  return {extents, numbers<T>(extents.size(), seed), offset};
}

}  // namespace compared
