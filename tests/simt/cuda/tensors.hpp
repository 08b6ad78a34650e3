#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/core/dtype.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host/target.hpp"

// What tests of ops::on<cuda> share. They run in the stand-in for a GPU's threads, and unchanged on a GPU, where
// TRIREME_TEST_ON_GPU is defined and shapes may be larger.

namespace on_device {

#if defined(TRIREME_TEST_ON_GPU)
inline constexpr bool large = true;
#else
inline constexpr bool large = false;
#endif

/// The sanitizer that the kernels are compiled for: "thread" or "address"; empty: none. Shapes may be fewer then.
[[nodiscard]] inline std::string_view sanitizer() {
  auto const* const given = std::getenv("TRIREME_TEST_SANITIZED");
  return given == nullptr ? "" : given;
}

using kernels = trireme::ops::on<trireme::cuda>;

/// Numbers between -span and span that differ from call to call.
template <class T>
std::vector<T> numbers(std::int64_t n, std::uint64_t seed, double span = 4) {
  std::vector<T> all(static_cast<std::size_t>(n));
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (auto& each : all) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    auto const number = span * (static_cast<double>(state >> 40) * 0x1p-23 - 1);
    if constexpr (trireme::storage_float<T>)
      each = T(static_cast<float>(number));
    else
      each = static_cast<T>(number);
  }
  return all;
}

/// n numbers between -12 and 12, some of them 0, subnormal, large or, unless they are to be finite, infinite or NaN.
/// Integers of any size.
template <class T>
std::vector<T> mixed_numbers(std::int64_t n, std::uint64_t seed, bool finite = false) {
  std::vector<T> all(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const bits = trireme::mix(seed * 1000003 + i);
    if constexpr (std::is_integral_v<T>) {
      all[i] = static_cast<T>(bits);
    } else {
      auto x = static_cast<float>(static_cast<std::int32_t>(bits % 24001) - 12000) / 1000;
      if (i % 23 == 5) x = -0.0F;
      if (i % 29 == 7) x *= 1e-40F;
      if (i % 31 == 9) x *= 20;
      if (!finite && i % 97 == 11) x = std::numeric_limits<float>::infinity();
      if (!finite && i % 101 == 3) x = std::numeric_limits<float>::quiet_NaN();
      all[i] = static_cast<T>(x);
    }
  }
  return all;
}

/// A tensor on the device whose elements begin `shift` elements behind an aligned address.
template <class T>
struct shifted {
  trireme::tensor<T, trireme::cuda> memory;
  trireme::tensor_view<T, trireme::cuda> view;

  explicit shifted(std::vector<T> const& all, std::int64_t shift = 0)
      : memory(trireme::shape{static_cast<std::int64_t>(all.size()) + shift}),
        view(memory.view().flat(shift, static_cast<std::int64_t>(all.size()))) {
    kernels::upload(view, all);
  }
  [[nodiscard]] std::vector<T> here() const {
    std::vector<T> all(static_cast<std::size_t>(view.size()));
    kernels::download(std::span<T>(all), view);
    return all;
  }
};

/// Whether all numbers are close: within `relative` of the wanted one, or `absolute`.
template <class T>
bool close(std::vector<T> const& got, std::vector<T> const& want, double relative, double absolute) {
  if (got.size() != want.size()) return false;
  for (std::size_t i = 0; i < got.size(); ++i) {
    auto const a = static_cast<double>(got[i]), b = static_cast<double>(want[i]);
    if (!(std::abs(a - b) <= relative * std::abs(b) + absolute)) return false;
  }
  return true;
}
/// The host's bits. NaN is NaN, because its payload depends on the processor. `nearly`, and on a CPU without FMA, where
/// the host's kernels round more often: a few units in the last place.
template <class T>
bool equal_to_host(std::vector<T> const& got, std::vector<T> const& want, bool nearly = false) {
  double tolerance = nearly ? 1e-6 : 0;
  if (trireme::ops::detected() < trireme::ops::cpu_level::avx2) tolerance = trireme::storage_float<T> ? 1e-2 : 1e-6;
  return std::ranges::equal(got, want, [&](T a, T b) {
    if (std::memcmp(&a, &b, sizeof a) == 0) return true;
    if constexpr (std::is_integral_v<T>) {
      return false;
    } else {
      auto const x = static_cast<double>(a), y = static_cast<double>(b);
      if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
      return tolerance > 0 && std::abs(x - y) <= tolerance * (1 + std::abs(y));
    }
  });
}
/// The same bits, or nearly: without FMA the host's kernels round more often, and in double they have none.
template <class T>
bool same(std::vector<T> const& a, std::vector<T> const& b) {
  if (std::is_same_v<T, double>) return close(a, b, 1e-12, 1e-12);
  if (trireme::ops::detected() < trireme::ops::cpu_level::avx2 && !std::is_integral_v<T>)
    return close(a, b, 1e-2, 1e-2);
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
/// Somewhat more than the distance of neighbouring numbers of T, relative to them.
template <class T>
inline constexpr double step_of = std::is_same_v<T, trireme::bfloat16>  ? 0x1.02p-7
                                  : std::is_same_v<T, trireme::float16> ? 0x1.02p-10
                                  : std::is_same_v<T, float>            ? 4e-6
                                                                        : 1e-12;

template <class F>
void for_types(F&& f) {
  f(float{});
  f(double{});
  f(trireme::bfloat16{});
  f(trireme::float16{});
}

}  // namespace on_device
