// Heads in the order that attention takes, turned by their positions; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

// y = the sum of n heads that lie side by side, turned: y may be the only one of them. A turn back has a negative sign.
template <class T, class A>
TRIREME_INLINE void turn(T* y, T const* x, std::int64_t n, A const* angles, std::int64_t width, A sign) {
  using F = lanes_for<T>;
  if (angles == nullptr) {
    TRIREME_FOR_LANES(F, width, i, count, {
      F sum = F::load(x + i, count);
      for (std::int64_t j = 1; j < n; ++j) sum = sum + F::load(x + j * width + i, count);
      sum.store(y + i, count);
    })
    return;
  }
  auto const half = width / 2;
  F const direction = F::all(sign);
  TRIREME_FOR_LANES(F, half, i, count, {
    F a = F::load(x + i, count);
    F b = F::load(x + half + i, count);
    for (std::int64_t j = 1; j < n; ++j) {
      a = a + F::load(x + j * width + i, count);
      b = b + F::load(x + j * width + half + i, count);
    }
    F const cosine = F::load(angles + i, count);
    F const sine = direction * F::load(angles + half + i, count);
    fma(a, cosine, F::all(0) - b * sine).store(y + i, count);
    fma(a, sine, b * cosine).store(y + half + i, count);
  })
}

template <class T, class A>
inline void arrange(T* qkv, T const* x, A const* table, head_layout const& how, std::int64_t rows) {
  A const* const none = nullptr;
  auto const each = how.heads / how.key_heads;
  auto const channels = how.heads * how.width;
  for (std::int64_t row = 0; row < rows; ++row, x += how.columns(), qkv += 3 * channels) {
    A const* const angles = table == nullptr ? nullptr : table + row % how.context * how.width;
    for (std::int64_t head = 0; head < how.heads; ++head) {
      auto const key = head / each;
      T* const to = qkv + head * how.width;
      turn(to, x + how.query(head), 1, angles, how.width, A(1));
      turn(to + channels, x + how.key(key), 1, angles, how.width, A(1));
      turn(to + 2 * channels, x + how.value(key), 1, none, how.width, A(1));
    }
  }
}

template <class T, class A>
inline void arrange_backward(T* dx, T const* dqkv, A const* table, head_layout const& how, std::int64_t rows) {
  A const* const none = nullptr;
  auto const each = how.heads / how.key_heads;
  auto const channels = how.heads * how.width;
  for (std::int64_t row = 0; row < rows; ++row, dx += how.columns(), dqkv += 3 * channels) {
    A const* const angles = table == nullptr ? nullptr : table + row % how.context * how.width;
    for (std::int64_t head = 0; head < how.heads; ++head) {
      turn(dx + how.query(head), dqkv + head * how.width, 1, angles, how.width, A(-1));
    }
    for (std::int64_t key = 0; key < how.key_heads; ++key) {
      T const* const from = dqkv + channels + key * each * how.width;
      turn(dx + how.key(key), from, each, angles, how.width, A(-1));
      turn(dx + how.value(key), from + channels, each, none, how.width, A(1));
    }
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
