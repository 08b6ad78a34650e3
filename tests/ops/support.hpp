#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/target.hpp"

// Shared by the tests of kernels: test numbers, the CPU levels of this machine, and distances.

/// Uniform numbers in [-width, width) that float and bfloat16 hold exactly enough: multiples of width / 128.
template <class T>
trireme::tensor<T> random_tensor(trireme::shape extents, unsigned seed, double width = 1) {
  trireme::tensor<T> out(extents);
  std::mt19937 generate(seed);
  std::uniform_int_distribution<int> steps(-128, 127);
  for (auto& element : out.span()) element = static_cast<T>(static_cast<float>(steps(generate) * width / 128));
  return out;
}

template <class T>
trireme::tensor<T> zeros(trireme::shape extents) {
  trireme::tensor<T> out(extents);
  for (auto& element : out.span()) element = T{};
  return out;
}

/// Runs `body` at each CPU level that this machine has.
template <class Body>
void at_each_level(Body&& body) {
  using trireme::ops::cpu_level;
  auto const before = trireme::ops::detected();
  for (auto const level :
       {cpu_level::baseline, cpu_level::avx2, cpu_level::avx512, cpu_level::avx512_bf16, cpu_level::amx}) {
    if (level > trireme::ops::available()) continue;
    trireme::ops::detected(level);
    body();
  }
  trireme::ops::detected(before);
}

/// sum a[i] b[i]: the loss whose gradient with respect to a is b.
inline double inner(std::span<double const> a, std::span<double const> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The largest |a[i] - b[i]|, relative to the largest |b[i]| (or 1, if that is more).
template <class T, class U>
double distance(trireme::tensor<T> const& a, trireme::tensor<U> const& b) {
  double far = 0;
  double scale = 1;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    auto const x = static_cast<double>(a[i]);
    auto const y = static_cast<double>(b[i]);
    far = std::isnan(x) ? INFINITY : std::max(far, std::fabs(x - y));
    scale = std::max(scale, std::fabs(y));
  }
  return far / scale;
}

template <class T>
bool same_bits(std::span<T const> a, std::span<T const> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// The tolerance of a kernel's result in T, compared with double.
template <class T>
inline constexpr double tolerance = sizeof(T) == 8   ? 1e-14
                                    : sizeof(T) == 4 ? 4e-6
                                                     : 2e-2;
