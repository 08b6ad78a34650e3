// Stores the sums of a product; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

/// Applies the rule to `count` sums from `value`, for columns from `column` on, at element `at`.
template <class T, class F>
TRIREME_INLINE void store_lanes(store_rule<T> const& rule, F value, std::int64_t at, std::int64_t column, int count) {
  if (rule.bias != nullptr) value = value + F::load(rule.bias + column, count);
  if (rule.keep != nullptr) value.store(rule.keep + at, count);
  if (rule.slope_at != nullptr) {
    value = value * activation_slope(F::load(rule.slope_at + at, count), rule.act);
  } else {
    value = activated(value, rule.act);
  }
  if (rule.residual != nullptr) value = value + F::load(rule.residual + at, count);
  if (rule.accumulate) value = value + F::load(rule.y + at, count);
  value.store(rule.y + at, count);
}

template <class T>
inline void store_sums(store_job<T> const& job) {
  using F = lanes_for<T>;
  store_rule<T> const& rule = *job.rule;
  for (std::int64_t i = 0; i < job.rows; ++i) {
    auto const* const sums = job.sums + i * job.sums_row;
    auto const at = (job.row + i) * rule.ld + job.column;
    TRIREME_FOR_LANES(F, job.columns, j, count,
                      { store_lanes(rule, F::load(sums + j, count), at + j, job.column + j, count); })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL
