#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/core/dtype.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/codes.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

template <class G>
void encode_codes(float* scales, std::uint8_t* codes, G const* x, std::int64_t n, code_form const& form,
                  random_stream const* rounding);
template <class G>
void decode_codes(G* y, float const* scales, std::uint8_t const* codes, std::int64_t n, code_form const& form,
                  bool add);
/// @returns how many of the k were found; their indices are the last ones, ascending.
template <class G>
std::int64_t select_sampled(G const* x, std::int64_t n, std::int32_t* indices, std::int64_t k, std::int64_t samples);

}  // namespace detail

/// Kernels of compressors that quantise, take signs or choose elements.
/// Numerics the same bits at every CPU level.
/// Threads  thread-safe on different outputs.   Errors   assertion_error (light) if sizes do not fit.
struct host_codes {
  template <class T>
  using view = tensor_view<T, host>;

  /// x as codes and scales (code_form).
  ///
  /// Numerics bits > 1: the scale is the largest magnitude of the block / levels, rounded up to 16 significant bits, so
  ///          that a code times its scale is exact. With `rounding`, a number between two codes becomes either one with
  ///          the probability that makes its mean the number (to 2^-16 of a scale); with nullptr the nearest code.
  ///          bits = 1: the scale is the mean magnitude, and 0 counts as positive. A block whose scale would be below
  ///          2^-100 becomes zeros; one with NaN or infinity becomes NaN. A double is first rounded to float.
  template <class G>
  static void encode_codes(view<float> scales, view<std::uint8_t> codes, view<G> x, code_form const& form,
                           random_stream const* rounding) {
    detail::expect_code_sizes("encode_codes", form, x.size(), scales.size(), codes.size());
    std::remove_const_t<G> const* const from = raw(x);
    detail::encode_codes(raw(scales), raw(codes), from, x.size(), form, rounding);
  }
  /// y = or += what encode_codes has written.
  template <class G>
  static void decode_codes(view<G> y, view<float const> scales, view<std::uint8_t const> codes, code_form const& form,
                           bool add) {
    detail::expect_code_sizes("decode_codes", form, y.size(), scales.size(), codes.size());
    detail::decode_codes(raw(y), raw(scales), raw(codes), y.size(), form, add);
  }

  /// values[i] = an element of x drawn from the i-th of k = values.size() strata, which are equal to within one
  /// element; multiplied by the size of the stratum if `weighted`, so that scatter_drawn has the mean x.
  template <class T, class G>
  static void gather_drawn(view<T> values, view<G> x, random_stream const& drawn, bool weighted) {
    std::remove_const_t<G> const* const from = raw(x);
    T* const to = raw(values);
    for_each_drawn(values.size(), x.size(), drawn, [&](std::int64_t i, std::int64_t at, std::int64_t size) {
      auto const value = weighted ? from[at] * static_cast<std::remove_const_t<G>>(size) : from[at];
      if constexpr (storage_float<T>) {
        to[i] = T(static_cast<float>(value));
      } else {
        to[i] = static_cast<T>(value);
      }
    });
  }
  /// Writes the values to the elements of y that gather_drawn chose for the same numbers.
  template <class G, class T>
  static void scatter_drawn(view<G> y, view<T> values, random_stream const& drawn) {
    std::remove_const_t<T> const* const from = raw(values);
    G* const to = raw(y);
    for_each_drawn(values.size(), y.size(), drawn,
                   [&](std::int64_t i, std::int64_t at, std::int64_t) { to[at] = static_cast<G>(from[i]); });
  }

  /// Like select_largest, but a threshold from about `samples` elements limits the search, so x is read only once. If
  /// fewer than k elements reach the threshold, the missing ones come first, with index 0 and value 0.
  /// Allocates scratch memory once per thread.
  template <class G>
  static void select_sampled(view<G> x, std::int64_t samples, view<std::int32_t> indices,
                             detail::output<std::remove_const_t<G>> values) {
    detail::same_size("select_sampled", indices.size(), values.size());
    expects(assertion_level::light, indices.size() <= x.size(),
            [] { return std::string("trireme::ops::select_sampled: more elements asked for than there are"); });
    std::remove_const_t<G> const* const from = raw(x);
    auto const k = indices.size();
    auto const missing = k - detail::select_sampled(from, x.size(), raw(indices), k, samples);
    for (std::int64_t i = 0; i < k; ++i) {
      if (i < missing) raw(indices)[i] = 0;
      raw(values)[i] = i < missing ? std::remove_const_t<G>{} : from[raw(indices)[i]];
    }
  }

 private:
  template <class F>
  static void for_each_drawn(std::int64_t k, std::int64_t n, random_stream const& drawn, F&& f) {
    std::array<std::uint32_t, 4> words{};
    for (std::int64_t i = 0; i < k; ++i) {
      if (i % 4 == 0) words = random_block(drawn.key, drawn.site, drawn.sample, static_cast<std::uint32_t>(i / 4));
      detail::stratum const of(n, k, i);
      auto const offset = std::uint64_t{words[static_cast<std::size_t>(i % 4)]} * static_cast<std::uint64_t>(of.size());
      f(i, of.first + static_cast<std::int64_t>(offset >> 32), of.size());
    }
  }
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/codes.ipp"
#endif
