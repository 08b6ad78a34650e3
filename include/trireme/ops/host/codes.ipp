#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

#include "trireme/core/hash.hpp"
#include "trireme/ops/host/codes.hpp"
#include "trireme/ops/host/detail/select.hpp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/codes.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/codes.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/codes.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

// Encodes one block of at most code_form::block numbers; the numbers before it in the call decide its random numbers.
template <int Bits>
void encode_block(float* scale, std::uint8_t* codes, float const* x, std::int64_t n, std::int64_t before,
                  random_stream const* rounding) {
  TRIREME_DISPATCH(true, template encode_block<Bits>(scale, codes, x, n, before, rounding));
}
template <int Bits>
void decode_block(float* y, float scale, std::uint8_t const* codes, std::int64_t n, bool add) {
  TRIREME_DISPATCH(true, template decode_block<Bits>(y, scale, codes, n, add));
}

template <class F>
void with_bits(int bits, F&& f) {
  switch (bits) {
    case 8:
      return f(std::integral_constant<int, 8>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    default:
      return f(std::integral_constant<int, 1>{});
  }
}

template <class G>
void encode_codes(float* scales, std::uint8_t* codes, G const* x, std::int64_t n, code_form const& form,
                  random_stream const* rounding) {
  thread_local std::vector<float> rounded;  // of doubles
  with_bits(form.bits, [&](auto bits) {
    for (std::int64_t at = 0; at < n; at += form.block) {
      auto const count = std::min(form.block, n - at);
      auto* const to = codes + form.code_bytes(at);
      if constexpr (std::is_same_v<G, float>) {
        encode_block<bits()>(scales++, to, x + at, count, at, rounding);
      } else {
        rounded.assign(x + at, x + at + count);
        encode_block<bits()>(scales++, to, rounded.data(), count, at, rounding);
      }
    }
  });
}
template <class G>
void decode_codes(G* y, float const* scales, std::uint8_t const* codes, std::int64_t n, code_form const& form,
                  bool add) {
  thread_local std::vector<float> decoded;
  with_bits(form.bits, [&](auto bits) {
    for (std::int64_t at = 0; at < n; at += form.block) {
      auto const count = std::min(form.block, n - at);
      auto const* const from = codes + form.code_bytes(at);
      if constexpr (std::is_same_v<G, float>) {
        decode_block<bits()>(y + at, *scales++, from, count, add);
      } else {
        decoded.resize(static_cast<std::size_t>(count));
        decode_block<bits()>(decoded.data(), *scales++, from, count, false);
        for (std::int64_t i = 0; i < count; ++i) {
          auto const value = static_cast<G>(decoded[static_cast<std::size_t>(i)]);
          y[at + i] = add ? y[at + i] + value : value;
        }
      }
    }
  });
}

template <class G>
std::int64_t select_sampled(G const* x, std::int64_t n, std::int32_t* indices, std::int64_t k, std::int64_t samples) {
  if (k == 0) return 0;
  if (samples < 1 || n < 4 * samples) {
    select_largest(x, n, indices, k);
    return k;
  }
  thread_local std::vector<decltype(magnitude_bits(G{}))> drawn;
  drawn.clear();
  for (std::int64_t i = 0; i < samples; ++i) {  // one of each stratum, so that periodic gradients do no harm
    stratum const of(n, samples, i);
    auto const offset = mix(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(of.size());
    drawn.push_back(magnitude_bits(x[of.first + static_cast<std::int64_t>(offset)]));
  }
  // The rank that k has in the sample, and two standard deviations more: usually at least k elements are found.
  auto const rank = static_cast<double>(k) / static_cast<double>(n) * static_cast<double>(samples);
  auto const wanted = static_cast<std::int64_t>(rank + 2 * std::sqrt(rank) + 1);
  if (wanted >= samples) {
    select_largest(x, n, indices, k);
    return k;
  }
  std::nth_element(drawn.begin(), drawn.begin() + wanted, drawn.end(), std::greater<>{});
  auto const threshold = drawn[static_cast<std::size_t>(wanted)];

  thread_local std::vector<std::int32_t> places;
  thread_local std::vector<G> values;
  places.clear();
  values.clear();
  auto const most = 4 * k + 64;  // of many equal magnitudes the first ones are enough
  for (std::int64_t i = 0; i < n && static_cast<std::int64_t>(places.size()) < most; ++i) {
    if (magnitude_bits(x[i]) < threshold) continue;
    places.push_back(static_cast<std::int32_t>(i));
    values.push_back(x[i]);
  }
  auto const found = static_cast<std::int64_t>(places.size());
  auto const kept = std::min(found, k);
  auto* const to = indices + (k - kept);
  select_largest(values.data(), found, to, kept);
  for (std::int64_t i = 0; i < kept; ++i) to[i] = places[static_cast<std::size_t>(to[i])];
  return kept;
}

}  // namespace trireme::ops::detail
