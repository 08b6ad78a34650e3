// Elementwise kernels; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T, class U>
inline void convert(T* y, U const* x, std::int64_t n) {
  using F = lanes_for<T, U>;
  TRIREME_FOR_LANES(F, n, i, count, { F::load(x + i, count).store(y + i, count); })
}

template <class T, class U>
inline void accumulate(T* y, U const* x, std::int64_t n, double weight) {
  using F = lanes_for<T, U>;
  F const w = F::all(static_cast<typename F::real>(weight));
  TRIREME_FOR_LANES(F, n, i, count, { fma(w, F::load(x + i, count), F::load(y + i, count)).store(y + i, count); })
}

template <class T>
inline void scale(T* y, std::int64_t n, double factor) {
  using F = lanes_for<T>;
  F const w = F::all(static_cast<typename F::real>(factor));
  TRIREME_FOR_LANES(F, n, i, count, { (w * F::load(y + i, count)).store(y + i, count); })
}

template <class T>
inline void multiply(T* y, T const* a, T const* b, std::int64_t n) {
  using F = lanes_for<T>;
  TRIREME_FOR_LANES(F, n, i, count, { (F::load(a + i, count) * F::load(b + i, count)).store(y + i, count); })
}

template <class T>
inline void activate(T* y, T const* x, std::int64_t n, activation act) {
  using F = lanes_for<T>;
  TRIREME_FOR_LANES(F, n, i, count, { activated(F::load(x + i, count), act).store(y + i, count); })
}

template <class T>
inline void activate_backward(T* dx, T const* dy, T const* x, std::int64_t n, activation act) {
  using F = lanes_for<T>;
  TRIREME_FOR_LANES(F, n, i, count,
                    { (F::load(dy + i, count) * activation_slope(F::load(x + i, count), act)).store(dx + i, count); })
}

// numbers[4 * i + j] = random_block(key, site, sample, block + i)[j] >> 8, for i < 8: one block per lane
// (core/rng.hpp).
inline void random_numbers(float* numbers, random_key key, std::uint32_t site, std::uint64_t sample,
                           std::uint32_t block) {
  constexpr std::uint64_t low = 0xffff'ffffU;
  auto const mixed = key.seed ^ (key.step * 0x9E3779B97F4A7C15ULL);
  auto key0 = static_cast<std::uint32_t>(mixed);
  auto key1 = static_cast<std::uint32_t>(mixed >> 32);
  wide<std::uint64_t> c0 = (wide<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7} + block) & low;
  wide<std::uint64_t> c1 = wide<std::uint64_t>{} + site;
  wide<std::uint64_t> c2 = wide<std::uint64_t>{} + (sample & low);
  wide<std::uint64_t> c3 = wide<std::uint64_t>{} + (sample >> 32);
  for (int round = 0; round < 10; ++round) {
    wide<std::uint64_t> const a = c0 * std::uint64_t{0xD2511F53U};
    wide<std::uint64_t> const b = c2 * std::uint64_t{0xCD9E8D57U};
    c0 = (b >> 32) ^ c1 ^ std::uint64_t{key0};
    c1 = b & low;
    c2 = (a >> 32) ^ c3 ^ std::uint64_t{key1};
    c3 = a & low;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  // Vector j has word j of every block. 24 bits are exact in a float.
  eight<float> const w0 = __builtin_convertvector(__builtin_convertvector(c0 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w1 = __builtin_convertvector(__builtin_convertvector(c1 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w2 = __builtin_convertvector(__builtin_convertvector(c2 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w3 = __builtin_convertvector(__builtin_convertvector(c3 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const front_low = __builtin_shufflevector(w0, w1, 0, 8, 1, 9, 2, 10, 3, 11);
  eight<float> const front_high = __builtin_shufflevector(w0, w1, 4, 12, 5, 13, 6, 14, 7, 15);
  eight<float> const back_low = __builtin_shufflevector(w2, w3, 0, 8, 1, 9, 2, 10, 3, 11);
  eight<float> const back_high = __builtin_shufflevector(w2, w3, 4, 12, 5, 13, 6, 14, 7, 15);
  eight<float> const rows[4] = {__builtin_shufflevector(front_low, back_low, 0, 1, 8, 9, 2, 3, 10, 11),
                                __builtin_shufflevector(front_low, back_low, 4, 5, 12, 13, 6, 7, 14, 15),
                                __builtin_shufflevector(front_high, back_high, 0, 1, 8, 9, 2, 3, 10, 11),
                                __builtin_shufflevector(front_high, back_high, 4, 5, 12, 13, 6, 7, 14, 15)};
  std::memcpy(numbers, rows, sizeof rows);
}

// Applies dropout to n numbers of one sample.
template <class T>
inline void dropout(T* y, std::int64_t n, std::int64_t position, dropout_site const& site, std::uint64_t sample) {
  using F = lanes_for<T>;
  using real = typename F::real;
  dropout_scale const how(site.probability);
  F const threshold = F::all(static_cast<real>(how.threshold));
  F const kept = F::all(static_cast<real>(how.kept));
  alignas(64) float numbers[32];
  for (std::int64_t at = 0; at < n;) {
    auto const skipped = (position + at) % 32;  // only if a sample's values are split
    random_numbers(numbers, site.key, site.site, sample, static_cast<std::uint32_t>((position + at - skipped) / 4));
    std::int64_t const here = n - at < 32 - skipped ? n - at : 32 - skipped;
    T* const to = y + at;
    float const* const from = numbers + skipped;
    TRIREME_FOR_LANES(F, here, i, count, {
      F const number = F::load(from + i, count);
      where_less(number, threshold, F::all(0), kept * F::load(to + i, count)).store(to + i, count);
    })
    at += here;
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
