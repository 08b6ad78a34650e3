// Stores the sums of a product of integers by a rule that most have; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <bool Bias, bool Residual, class T>
inline void store_with(store_job<T> const& job) {
  using F = lanes_for<T>;
  auto const row = job.rule->ld, first = job.row * row + job.column, columns = job.columns;
  T* y = job.rule->y + first;
  T const* residual = Residual ? job.rule->residual + first : nullptr;
  T const* const bias = Bias ? job.rule->bias + job.column : nullptr;
  auto const* sums = job.sums;
  for (auto left = job.rows; left > 0; --left, y += row, sums += job.sums_row) {
    TRIREME_FOR_LANES(F, columns, j, count, {
      F value = F::load(sums + j, count);
      if constexpr (Bias) value = value + F::load(bias + j, count);
      if constexpr (Residual) value = value + F::load(residual + j, count);
      value.store(y + j, count);
    })
    if constexpr (Residual) residual += row;
  }
}

/// As store_sums(), with fewer questions in its loops.
template <class T>
inline void store_integer_sums(store_job<T> const& job) {
  auto const& rule = *job.rule;
  bool const usual =
      rule.act == activation::none && rule.keep == nullptr && rule.slope_at == nullptr && !rule.accumulate;
  if (!usual) return store_sums(job);
  if (rule.bias == nullptr && rule.residual == nullptr) return store_with<false, false>(job);
  if (rule.bias == nullptr) return store_with<false, true>(job);
  if (rule.residual == nullptr) return store_with<true, false>(job);
  store_with<true, true>(job);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
