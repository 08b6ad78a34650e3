// Embedding; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T>
inline void embed(T* y, std::int32_t const* tokens, T const* table, T const* positions, std::int64_t rows,
                  std::int64_t context, std::int64_t channels, std::int64_t first, std::int64_t words) {
  using F = lanes_for<T>;
  for (std::int64_t row = 0; row < rows; ++row, y += channels) {
    auto const number = tokens[row] - first;
    T const* const word = number >= 0 && number < words ? table + number * channels : nullptr;
    T const* const position = positions == nullptr ? nullptr : positions + row % context * channels;
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const x = word == nullptr ? F::all(0) : F::load(word + i, count);
      (position == nullptr ? x : x + F::load(position + i, count)).store(y + i, count);
    })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
