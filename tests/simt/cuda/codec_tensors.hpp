#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "trireme/ops/cuda.hpp"

// Tensors of the tests of compressors and of updates of whole tensors.

namespace codec_tensors {

using kernels = trireme::ops::on<trireme::cuda>;

/// Normal numbers, many of them small.
template <class T>
std::vector<T> numbers(std::int64_t n, std::uint32_t seed) {
  std::mt19937 words(seed);
  std::normal_distribution<float> normal;
  std::vector<T> all(static_cast<std::size_t>(n));
  for (auto& each : all) {
    float const x = normal(words);
    each = static_cast<T>(0.01F * x * x * x);
  }
  return all;
}
/// A tensor on the device with these elements, which begin `offset` elements behind an aligned address.
template <class T>
struct there {
  trireme::tensor<T, trireme::cuda> memory;
  std::int64_t offset, n;

  explicit there(std::vector<T> const& all, std::int64_t behind = 0)
      : memory(trireme::shape{behind + static_cast<std::int64_t>(all.size())}),
        offset(behind),
        n(static_cast<std::int64_t>(all.size())) {
    kernels::upload(view(), std::span<T const>(all));
  }
  [[nodiscard]] trireme::tensor_view<T, trireme::cuda> view() const { return memory.view().flat(offset, n); }
  [[nodiscard]] trireme::tensor_view<T const, trireme::cuda> constant() const { return view(); }
  [[nodiscard]] std::vector<T> back() const {
    std::vector<T> all(static_cast<std::size_t>(n));
    kernels::download(std::span<T>(all), view());
    return all;
  }
};
template <class T>
bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace codec_tensors
