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

}  // namespace trireme::ops::detail::TRIREME_LEVEL
