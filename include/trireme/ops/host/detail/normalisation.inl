// Normalisation, row by row; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T, class A>
inline void layer_norm(T* y, A* mean, A* rstd, T const* x, T const* gain, T const* bias, std::int64_t rows,
                       std::int64_t channels, double epsilon) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
    F total = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, { total = total + F::load(x + i, count); })
    A const middle = sum(total) * share;
    F const centre = F::all(middle);
    F squares = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const distance = first(count, F::load(x + i, count) - centre, F::all(0));
      squares = fma(distance, distance, squares);
    })
    A const inverse = A(1) / std::sqrt(sum(squares) * share + static_cast<A>(epsilon));
    F const factor = F::all(inverse);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const normal = (F::load(x + i, count) - centre) * factor;
      fma(normal, F::load(gain + i, count), F::load(bias + i, count)).store(y + i, count);
    })
    mean[row] = middle;
    rstd[row] = inverse;
  }
}

// With n = (x - mean) rstd and g = dy gain: dx = rstd (g - average(g) - n average(g n)).
template <class T, class A>
inline void layer_norm_backward(T* dx, A* dgain, A* dbias, T const* dy, T const* x, A const* mean, A const* rstd,
                                T const* gain, std::int64_t rows, std::int64_t channels, bool accumulate) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, dy += channels, dx += channels) {
    F const centre = F::all(mean[row]);
    F const factor = F::all(rstd[row]);
    F total = F::all(0);
    F along = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const slope = F::load(dy + i, count);
      F const normal = (F::load(x + i, count) - centre) * factor;
      F const g = slope * F::load(gain + i, count);  // 0 beyond count, because slope is
      total = total + g;
      along = fma(g, normal, along);
      fma(slope, normal, F::load(dgain + i, count)).store(dgain + i, count);
      (F::load(dbias + i, count) + slope).store(dbias + i, count);
    })
    F const average = F::all(-sum(total) * share);
    F const tilt = F::all(-sum(along) * share);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const normal = (F::load(x + i, count) - centre) * factor;
      F const g = F::load(dy + i, count) * F::load(gain + i, count);
      F const inner = fma(tilt, normal, g + average);
      F const before = accumulate ? F::load(dx + i, count) : F::all(0);
      fma(factor, inner, before).store(dx + i, count);
    })
  }
}

template <class T, class A>
inline void rms_norm(T* y, A* rstd, T const* x, T const* gain, std::int64_t rows, std::int64_t channels,
                     double epsilon) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
    F squares = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const number = F::load(x + i, count);
      squares = fma(number, number, squares);
    })
    A const inverse = A(1) / std::sqrt(sum(squares) * share + static_cast<A>(epsilon));
    F const factor = F::all(inverse);
    TRIREME_FOR_LANES(F, channels, i, count,
                      { (F::load(x + i, count) * factor * F::load(gain + i, count)).store(y + i, count); })
    rstd[row] = inverse;
  }
}

// With n = x rstd and g = dy gain: dx = rstd (g - n average(g n)).
template <class T, class A>
inline void rms_norm_backward(T* dx, A* dgain, T const* dy, T const* x, A const* rstd, T const* gain, std::int64_t rows,
                              std::int64_t channels, bool accumulate) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, dy += channels, dx += channels) {
    F const factor = F::all(rstd[row]);
    F along = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const slope = F::load(dy + i, count);
      F const normal = F::load(x + i, count) * factor;
      along = fma(slope * F::load(gain + i, count), normal, along);
      fma(slope, normal, F::load(dgain + i, count)).store(dgain + i, count);
    })
    F const tilt = F::all(-sum(along) * share);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const normal = F::load(x + i, count) * factor;
      F const inner = fma(tilt, normal, F::load(dy + i, count) * F::load(gain + i, count));
      F const before = accumulate ? F::load(dx + i, count) : F::all(0);
      fma(factor, inner, before).store(dx + i, count);
    })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
