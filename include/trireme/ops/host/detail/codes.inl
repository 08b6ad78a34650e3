// Codes of few bits; included once for each CPU level (see simd.hpp).
//
// 16 numbers are one vector. A group of 512 / Bits numbers, 32 / Bits vectors, becomes 16 words: vector v has bits
// [Bits v, Bits (v + 1)) of each. All arithmetic is in integers, or is a single product: no level contracts it.
namespace trireme::ops::detail::TRIREME_LEVEL {

// The largest magnitude, as bits; NaN is largest.
inline std::uint32_t largest_magnitude(float const* x, std::int64_t n) {
  constexpr int several = 4;
  wide<std::int32_t> most[several] = {};
  std::int64_t i = 0;
  for (; i + 16 * several <= n; i += 16 * several) {
    TRIREME_UNROLL
    for (int v = 0; v < several; ++v) {
      wide<std::int32_t> bits;
      std::memcpy(&bits, x + i + 16 * v, sizeof bits);
      bits &= 0x7fff'ffff;
      most[v] = bits > most[v] ? bits : most[v];
    }
  }
  std::int32_t lanes[16 * several];
  std::memcpy(lanes, most, sizeof lanes);
  std::int32_t all = 0;
  for (auto const lane : lanes) all = lane > all ? lane : all;
  for (; i < n; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fff'ffff;
    all = bits > all ? bits : all;
  }
  return static_cast<std::uint32_t>(all);
}

// The sum of magnitudes, in one order at every level.
inline float sum_of_magnitudes(float const* x, std::int64_t n) {
  constexpr int several = 4;
  wide<float> sums[several] = {};
  std::int64_t i = 0;
  for (; i + 16 * several <= n; i += 16 * several) {
    TRIREME_UNROLL
    for (int v = 0; v < several; ++v) {
      wide<std::int32_t> bits;
      std::memcpy(&bits, x + i + 16 * v, sizeof bits);
      bits &= 0x7fff'ffff;
      wide<float> magnitudes;
      std::memcpy(&magnitudes, &bits, sizeof bits);
      sums[v] += magnitudes;
    }
  }
  float lanes[16 * several];
  std::memcpy(lanes, sums, sizeof lanes);
  float all = 0;
  for (auto const lane : lanes) all += lane;
  for (; i < n; ++i) all += x[i] < 0 ? -x[i] : x[i];
  return all;
}

// 16 words of two 16-bit random numbers each: an integer hash of the vector's number, keyed by two words.
struct lane_randoms {
  std::uint32_t first, second;
};
inline lane_randoms lane_key(random_stream const& numbers, std::int64_t stretch) {
  auto const words = random_block(numbers.key, numbers.site, numbers.sample, static_cast<std::uint32_t>(stretch));
  return {words[0], words[1]};
}

template <int Bits, bool Random>
TRIREME_INLINE void encode_group(std::uint8_t* codes, float const* x, float factor, std::uint32_t number,
                                 lane_randoms const& key) {
  constexpr int vectors = 32 / Bits;
  constexpr std::int32_t limit = ((1 << (Bits - 1)) - 1) << 16;
  constexpr std::uint32_t mask = (1U << Bits) - 1;
  wide<std::uint32_t> const lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  wide<std::uint32_t> all = {};
  TRIREME_UNROLL
  for (int v = 0; v < vectors; v += 2) {
    wide<std::uint32_t> random = lanes + (number + static_cast<std::uint32_t>(8 * v));
    if constexpr (Random) {  // [Wellons, "hash-prospector", 2018]: lowbias32, with a key before each product
      random ^= key.first;
      random ^= random >> 16;
      random *= 0x7feb352dU;
      random ^= random >> 15;
      random += key.second;
      random *= 0x846ca68bU;
      random ^= random >> 16;
    } else {
      random = wide<std::uint32_t>{} + 0x8000'8000U;  // a half, twice
    }
    TRIREME_UNROLL
    for (int half = 0; half < 2; ++half) {
      wide<float> numbers;
      std::memcpy(&numbers, x + 16 * (v + half), sizeof numbers);
      // Codes with 16 bits after the point.
      wide<std::int32_t> fixed = __builtin_convertvector(numbers * factor, wide<std::int32_t>);
      fixed = fixed > limit ? wide<std::int32_t>{} + limit : fixed;
      fixed = fixed < -limit ? wide<std::int32_t>{} - limit : fixed;
      wide<std::uint32_t> const added = half == 0 ? (random & 0xffffU) : (random >> 16);
      fixed += __builtin_convertvector(added, wide<std::int32_t>);
      fixed >>= 16;
      all |= (__builtin_convertvector(fixed, wide<std::uint32_t>) & mask)
             << static_cast<std::uint32_t>(Bits * (v + half));
    }
  }
  std::memcpy(codes, &all, sizeof all);
}
TRIREME_INLINE void encode_signs(std::uint8_t* codes, float const* x) {
  wide<std::uint32_t> all = {};
  for (std::uint32_t v = 0; v < 32; ++v) {
    wide<std::uint32_t> bits;
    std::memcpy(&bits, x + 16 * v, sizeof bits);
    all |= (bits >> 31) << v;
  }
  std::memcpy(codes, &all, sizeof all);
}

// The scale of codes in [-levels, levels]; NaN if a number is not finite.
inline float scale_of_codes(std::uint32_t largest, int levels) {
  if (largest >= 0x7f80'0000U) return std::numeric_limits<float>::quiet_NaN();
  float most;
  std::memcpy(&most, &largest, sizeof most);
  if (most < 0x1p-100F) return 0;
  // Upwards to 16 significant bits; but levels * scale stays finite.
  float scale = most / static_cast<float>(levels);
  float highest = std::numeric_limits<float>::max() / static_cast<float>(levels);
  std::uint32_t bits;
  std::memcpy(&bits, &highest, sizeof bits);
  bits &= ~0xffU;
  std::memcpy(&highest, &bits, sizeof bits);
  std::memcpy(&bits, &scale, sizeof bits);
  bits = (bits + 0xffU) & ~0xffU;
  std::memcpy(&scale, &bits, sizeof bits);
  return scale < highest ? scale : highest;
}
// The mean magnitude.
inline float scale_of_signs(float const* x, std::int64_t n) {
  float scale = sum_of_magnitudes(x, n) / static_cast<float>(n);
  if (!(scale <= std::numeric_limits<float>::max())) {  // an overflow, or numbers that are not finite
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] < 0 ? -static_cast<double>(x[i]) : static_cast<double>(x[i]);
    double const mean = sum / static_cast<double>(n);
    if (!(mean <= static_cast<double>(std::numeric_limits<float>::max())))
      return std::numeric_limits<float>::quiet_NaN();
    scale = static_cast<float>(mean);
  }
  return scale < 0x1p-100F ? 0 : scale;
}

template <int Bits>
inline void encode_block(float* scale, std::uint8_t* codes, float const* x, std::int64_t n, std::int64_t before,
                         random_stream const* rounding) {
  constexpr std::int64_t group = 512 / Bits;
  constexpr std::int64_t stretch = 4096;  // whole groups
  if constexpr (Bits == 1) {
    *scale = scale_of_signs(x, n);
  } else {
    *scale = scale_of_codes(largest_magnitude(x, n), (1 << (Bits - 1)) - 1);
  }
  bool const usable = *scale > 0;  // false for NaN
  float const factor = usable ? 65536.0F / *scale : 0;
  lane_randoms key{0, 0};
  for (std::int64_t at = 0; at < n; at += group, codes += 64) {
    if (!usable && Bits > 1) {
      std::memset(codes, 0, 64);
      continue;
    }
    float tail[std::size_t{group}];
    float const* from = x + at;
    if (at + group > n) {
      std::memset(tail, 0, sizeof tail);
      std::memcpy(tail, x + at, static_cast<std::size_t>(n - at) * sizeof(float));
      from = tail;
    }
    if constexpr (Bits == 1) {
      encode_signs(codes, from);
    } else if (rounding == nullptr) {
      encode_group<Bits, false>(codes, from, factor, 0, key);
    } else {
      auto const place = before + at;
      if (at == 0 || place % stretch == 0) key = lane_key(*rounding, place / stretch);
      encode_group<Bits, true>(codes, from, factor, static_cast<std::uint32_t>(place % stretch / 2), key);
    }
  }
}

template <int Bits>
TRIREME_INLINE void decode_group(float* y, float scale, std::uint8_t const* codes, bool add) {
  wide<std::uint32_t> all;
  std::memcpy(&all, codes, sizeof all);
  std::uint32_t scale_bits;
  std::memcpy(&scale_bits, &scale, sizeof scale_bits);
  TRIREME_UNROLL
  for (std::uint32_t v = 0; v < 32 / Bits; ++v) {
    wide<float> numbers;
    if constexpr (Bits == 1) {
      wide<std::uint32_t> const bits = ((all << (31 - v)) & 0x8000'0000U) | scale_bits;
      std::memcpy(&numbers, &bits, sizeof bits);
    } else {
      wide<std::uint32_t> const high = all << (32 - Bits * (v + 1));
      wide<std::int32_t> const code = __builtin_convertvector(high, wide<std::int32_t>) >> (32 - Bits);
      numbers = __builtin_convertvector(code, wide<float>) * scale;
    }
    if (add) {
      wide<float> there;
      std::memcpy(&there, y + 16 * v, sizeof there);
      numbers = there + numbers;
    }
    std::memcpy(y + 16 * v, &numbers, sizeof numbers);
  }
}

template <int Bits>
inline void decode_block(float* y, float scale, std::uint8_t const* codes, std::int64_t n, bool add) {
  constexpr std::int64_t group = 512 / Bits;
  std::int64_t at = 0;
  if (add) {
    for (; at + group <= n; at += group, codes += 64) decode_group<Bits>(y + at, scale, codes, true);
  } else {
    for (; at + group <= n; at += group, codes += 64) decode_group<Bits>(y + at, scale, codes, false);
  }
  if (at == n) return;
  float tail[std::size_t{group}] = {};
  auto const bytes = static_cast<std::size_t>(n - at) * sizeof(float);
  std::memcpy(tail, y + at, bytes);
  decode_group<Bits>(tail, scale, codes, add);
  std::memcpy(y + at, tail, bytes);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
