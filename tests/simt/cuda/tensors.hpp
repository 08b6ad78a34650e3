#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/core/dtype.hpp"
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
