// Reductions; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

// extreme_order in vectors as wide as this level's registers, with the same integer arithmetic.
template <class T, bool Largest>
struct keys_of {
  using order = extreme_order<T>;
  static constexpr int width = lanes_for<float>::width > 1 ? 4 * lanes_for<float>::width : 16;  // bytes
  typedef typename order::key keys __attribute__((vector_size(width)));
  typedef typename order::bits bits __attribute__((vector_size(width)));
  keys v;

  static TRIREME_INLINE keys turned(keys x) { return x ^ ((x >> order::sign_shift) & order::magnitude); }
  static TRIREME_INLINE keys_of load(char const* p) {
    keys x;
    std::memcpy(&x, p, sizeof x);
    bits const key = __builtin_convertvector(turned(x), bits);
    return {__builtin_convertvector(Largest ? key - order::nans : key + order::nans, keys)};
  }
  TRIREME_INLINE void store(char* p) const {
    bits const key = __builtin_convertvector(v, bits);
    keys const x = turned(__builtin_convertvector(Largest ? key + order::nans : key - order::nans, keys));
    std::memcpy(p, &x, sizeof x);
  }
  friend TRIREME_INLINE keys_of combined(keys_of a, keys_of b) {
    return {Largest ? (b.v > a.v ? b.v : a.v) : (b.v < a.v ? b.v : a.v)};
  }
};
template <class T, bool Largest>
inline void reduce_extremes(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n) {
  using F = keys_of<T, Largest>;
  constexpr std::size_t several = 4;
  auto const bytes = static_cast<std::size_t>(n) * sizeof(T);
  std::size_t at = 0;
  for (; at + several * F::width <= bytes; at += several * F::width) {
    F total[several];
    char const* x = static_cast<char const*>(terms[0]) + at;
    TRIREME_UNROLL
    for (std::size_t v = 0; v < several; ++v) total[v] = F::load(x + v * F::width);
    for (auto const* term : terms.subspan(1)) {
      x = static_cast<char const*>(term) + at;
      TRIREME_UNROLL
      for (std::size_t v = 0; v < several; ++v) total[v] = combined(total[v], F::load(x + v * F::width));
    }
    for (auto* output : outputs) {
      char* const y = static_cast<char*>(output) + at;
      TRIREME_UNROLL
      for (std::size_t v = 0; v < several; ++v) total[v].store(y + v * F::width);
    }
  }
  while (at < bytes) {
    auto const count = std::min<std::size_t>(F::width, bytes - at);
    char buffer[F::width] = {};
    std::memcpy(buffer, static_cast<char const*>(terms[0]) + at, count);
    F total = F::load(buffer);
    for (auto const* term : terms.subspan(1)) {
      std::memcpy(buffer, static_cast<char const*>(term) + at, count);
      total = combined(total, F::load(buffer));
    }
    total.store(buffer);
    for (auto* output : outputs) std::memcpy(static_cast<char*>(output) + at, buffer, count);
    at += count;
  }
}

// Sums the terms from x + at on in the fixed tree: after term i the last `merges[i]` partial sums are added up.
template <int Vectors, class F, class T, class... Count>
TRIREME_INLINE void sum_in_a_tree(std::span<void* const> outputs, std::span<void const* const> terms, int const* merges,
                                  std::int64_t at, Count... count) {
  constexpr int levels = 33;
  F sums[levels][std::size_t{Vectors}];
  F(*last)[std::size_t{Vectors}] = sums;
  for (std::size_t i = 0; i < terms.size(); ++i, ++last) {
    T const* const x = static_cast<T const*>(terms[i]) + at;
    for (int v = 0; v < Vectors; ++v) (*last)[v] = F::load(x + v * F::width, count...);
    for (int left = merges[i]; left > 0; --left, --last) {
      for (int v = 0; v < Vectors; ++v) last[-1][v] = last[-1][v] + last[0][v];
    }
  }
  for (auto* output : outputs) {
    T* const y = static_cast<T*>(output) + at;
    for (int v = 0; v < Vectors; ++v) sums[0][v].store(y + v * F::width, count...);
  }
}
template <class T>
inline void reduce_in_a_tree(std::span<void* const> outputs, std::span<void const* const> terms, int const* merges,
                             std::int64_t n) {
  using F = lanes_for<T>;
  constexpr int several = 4;
  std::int64_t at = 0;
  for (; at + several * F::width <= n; at += several * F::width)
    sum_in_a_tree<several, F, T>(outputs, terms, merges, at);
  for (; at < n; at += F::width)
    sum_in_a_tree<1, F, T>(outputs, terms, merges, at, static_cast<int>(std::min<std::int64_t>(F::width, n - at)));
}

template <class Op, class T>
inline void reduce(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n, int divisor) {
  using F = lanes_for<T>;
  constexpr int several = 4;
  [[maybe_unused]] F const terms_of_mean = F::all(static_cast<typename F::real>(divisor));
  std::int64_t at = 0;
  for (; at + several * F::width <= n; at += several * F::width) {
    F total[several];
    T const* x = static_cast<T const*>(terms[0]) + at;
    TRIREME_UNROLL
    for (int v = 0; v < several; ++v) total[v] = F::load(x + v * F::width);
    for (auto const* term : terms.subspan(1)) {
      x = static_cast<T const*>(term) + at;
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v] = total[v] + F::load(x + v * F::width);
    }
    if constexpr (std::is_same_v<Op, reduction::mean>) {
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v] = total[v] / terms_of_mean;
    }
    for (auto* output : outputs) {
      T* const y = static_cast<T*>(output) + at;
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v].store(y + v * F::width);
    }
  }
  std::int64_t const left = n - at;
  TRIREME_FOR_LANES(F, left, i, count, {
    F total = F::load(static_cast<T const*>(terms[0]) + at + i, count);
    for (auto const* term : terms.subspan(1)) total = total + F::load(static_cast<T const*>(term) + at + i, count);
    if constexpr (std::is_same_v<Op, reduction::mean>) total = total / terms_of_mean;
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at + i, count);
  })
}

template <class G>
TRIREME_INLINE void load_eight(eight<double>& to, G const* x) {
  eight<G> v;
  std::memcpy(&v, x, sizeof v);
  if constexpr (lanes_for<float>::width == 16 && std::is_same_v<G, float>) {
    to = _mm512_cvtps_pd(v);  // g++ makes two conversions and an insertion of the alternative
  } else {
    to = __builtin_convertvector(v, eight<double>);
  }
}
// The squares of floats are exact in double, so only the order of the sums matters: element i of a block goes to sum i
// % 16. Several blocks of n elements are processed at a time, so that additions need not wait for earlier ones.
template <std::size_t Blocks, class G>
TRIREME_INLINE void add_squares(G const* x, std::int64_t n, double* sums) {
  eight<double> low[Blocks] = {};
  eight<double> high[Blocks] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    TRIREME_UNROLL
    for (std::size_t b = 0; b < Blocks; ++b) {
      G const* const from = x + static_cast<std::int64_t>(b) * n + i;
      eight<double> c;
      eight<double> d;
      __builtin_prefetch(from + 4 * n);  // a block is a page, and hardware prefetching stops at its end
      load_eight(c, from);
      load_eight(d, from + 8);
      low[b] += c * c;
      high[b] += d * d;
    }
  }
  for (std::size_t b = 0; b < Blocks; ++b) {
    G const* const from = x + static_cast<std::int64_t>(b) * n;
    for (std::int64_t k = 0; i + k < n; ++k) {
      double const square = static_cast<double>(from[i + k]) * static_cast<double>(from[i + k]);
      auto& eight_sums = k < 8 ? low[b] : high[b];
      eight_sums[k % 8] += square;
    }
    low[b] += high[b];
    eight<double> const& all = low[b];
    sums[b] = ((all[0] + all[4]) + (all[2] + all[6])) + ((all[1] + all[5]) + (all[3] + all[7]));
  }
}
template <class G>
inline void squares_of_blocks(G const* x, std::int64_t n, std::int64_t block, double* sums) {
  for (; n >= 2 * block; n -= 2 * block, x += 2 * block, sums += 2) add_squares<2>(x, block, sums);
  for (; n > 0; n -= block, x += block, ++sums) add_squares<1>(x, std::min(n, block), sums);
}

template <class Bits>
inline bool all_finite(Bits const* x, std::int64_t n, Bits exponent) {
  constexpr std::int64_t width = 64 / sizeof(Bits);
  std::int64_t i = 0;
  while (i + width <= n) {
    // Checks the result only now and then.
    std::int64_t const end = std::min(n - width, i + 64 * width);
    auto bad = wide<Bits>{} != wide<Bits>{};
    for (; i <= end; i += width) {
      wide<Bits> bits;
      std::memcpy(&bits, reinterpret_cast<char const*>(x) + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
      bad |= (bits & exponent) == exponent;
    }
    std::uint64_t words[8];
    std::memcpy(words, &bad, sizeof words);
    for (auto const word : words) {
      if (word != 0) return false;
    }
  }
  for (; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, reinterpret_cast<char const*>(x) + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

// mix() of core/hash.hpp, in place.
TRIREME_INLINE void mix_lanes(wide<std::uint64_t>& x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
}

template <class Bits>
inline std::uint64_t hash_bits(Bits const* x, std::int64_t n, std::uint64_t name, std::uint64_t first_index) {
  wide<std::uint64_t> total = {};
  wide<std::uint64_t> index = wide<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7} + first_index;
  auto const* const bytes = reinterpret_cast<char const*>(x);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8, index += 8) {
    eight<Bits> bits;
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    wide<std::uint64_t> h = __builtin_convertvector(bits, wide<std::uint64_t>);
    mix_lanes(h);
    h ^= index;
    mix_lanes(h);
    h ^= name;
    mix_lanes(h);
    total += h;
  }
  std::uint64_t result = 0;
  for (int k = 0; k < 8; ++k) result += total[k];
  for (; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    result += hash_element(name, first_index + static_cast<std::uint64_t>(i), bits);
  }
  return result;
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
