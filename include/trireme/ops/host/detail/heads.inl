// Heads in the order that attention needs, rotated by their positions; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

// y = the rotated sum of n heads that are side by side; y may be the only one of them. The inverse rotation has a
// negative sign.
template <class T, class A>
TRIREME_INLINE void rotated(T* y, T const* x, std::int64_t n, A const* angles, std::int64_t width, A sign) {
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
      rotated(to, x + how.query(head), 1, angles, how.width, A(1));
      rotated(to + channels, x + how.key(key), 1, angles, how.width, A(1));
      rotated(to + 2 * channels, x + how.value(key), 1, none, how.width, A(1));
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
      rotated(dx + how.query(head), dqkv + head * how.width, 1, angles, how.width, A(-1));
    }
    for (std::int64_t key = 0; key < how.key_heads; ++key) {
      T const* const from = dqkv + channels + key * each * how.width;
      rotated(dx + how.key(key), from, each, angles, how.width, A(-1));
      rotated(dx + how.value(key), from + channels, each, none, how.width, A(1));
    }
  }
}

// The norms are those of rows (normalisation.inl); values do not change.
template <class T, class A>
inline void normalise_heads(T* y, A* rstd, T const* x, T const* query_gain, T const* key_gain, head_layout const& how,
                            std::int64_t rows, double epsilon) {
  using F = lanes_for<T>;
  auto const width = how.width;
  for (std::int64_t row = 0; row < rows; ++row, x += how.columns(), y += how.columns()) {
    for (std::int64_t head = 0; head < how.heads; ++head, ++rstd) {
      rms_norm(y + how.query(head), rstd, x + how.query(head), query_gain, 1, width, epsilon);
    }
    for (std::int64_t key = 0; key < how.key_heads; ++key, ++rstd) {
      rms_norm(y + how.key(key), rstd, x + how.key(key), key_gain, 1, width, epsilon);
      T* const to = y + how.value(key);
      T const* const from = x + how.value(key);
      TRIREME_FOR_LANES(F, width, i, count, { F::load(from + i, count).store(to + i, count); })
    }
  }
}

template <class T, class A>
inline void normalise_heads_backward(T* dx, A* dquery_gain, A* dkey_gain, T const* dy, T const* x, A const* rstd,
                                     T const* query_gain, T const* key_gain, head_layout const& how,
                                     std::int64_t rows) {
  using F = lanes_for<T>;
  auto const width = how.width;
  for (std::int64_t row = 0; row < rows; ++row, x += how.columns(), dy += how.columns(), dx += how.columns()) {
    for (std::int64_t head = 0; head < how.heads; ++head, ++rstd) {
      auto const at = how.query(head);
      rms_norm_backward(dx + at, dquery_gain, dy + at, x + at, rstd, query_gain, 1, width, false);
    }
    for (std::int64_t key = 0; key < how.key_heads; ++key, ++rstd) {
      auto const at = how.key(key);
      rms_norm_backward(dx + at, dkey_gain, dy + at, x + at, rstd, key_gain, 1, width, false);
      T* const to = dx + how.value(key);
      T const* const from = dy + how.value(key);
      TRIREME_FOR_LANES(F, width, i, count, { F::load(from + i, count).store(to + i, count); })
    }
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
