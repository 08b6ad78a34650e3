#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/ops/cuda/formulas.cuh"
#include "trireme/ops/cuda/types.cuh"

// How launch functions choose a kernel: by the type of the elements, and by the width of the packs that fit rows.

namespace trireme::ops::detail::device {

/// The type of sums of T: double for double, else float.
template <class T>
using sum_type = real_for<T>;

/// Calls f with std::integral_constant<int, Width> if rows of `row` elements of all tensors consist of packs of Width
/// elements, and with one of 1 otherwise. Tensors that are absent are null.
template <int Width, class F, class... T>
int with_pack_width(std::int64_t row, F&& f, T const*... tensors) {
  auto const fits = [](std::uintptr_t address, std::size_t bytes) { return address % bytes == 0; };
  if (row % Width == 0 && (fits(reinterpret_cast<std::uintptr_t>(tensors), Width * sizeof(T)) && ...))
    return f(std::integral_constant<int, Width>{});
  return f(std::integral_constant<int, 1>{});
}

/// A quotient and what remains.
struct quotient_and_rest {
  std::int64_t quotient, rest;
};
/// Divides numbers that are not negative, in 32 bits where that is enough: a device has no instruction for 64.
__device__ __forceinline__ quotient_and_rest split(std::int64_t number, std::int64_t by) {
  if (((number | by) >> 32) == 0) {
    auto const n = static_cast<std::uint32_t>(number);
    auto const d = static_cast<std::uint32_t>(by);
    auto const q = n / d;
    return {q, n - q * d};
  }
  auto const q = number / by;
  return {q, number - q * by};
}

template <class Real>
__device__ __forceinline__ bool not_a_number(Real x) {
  return !(x < 0) && !(x >= 0);
}

}  // namespace trireme::ops::detail::device
