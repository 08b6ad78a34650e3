// Reductions and losses.
#include "trireme/ops/host/reductions.ipp"
#include "trireme/ops/host/losses.ipp"

namespace trireme::ops::detail {

#define TRIREME_REDUCTION(Op, T)                                                                                      \
  template void reduce_elements<reduction::Op, T>(std::span<void* const>, std::span<void const* const>, std::int64_t, \
                                                  int);

#define TRIREME_ELEMENT(T)  \
  TRIREME_REDUCTION(sum, T) \
  TRIREME_REDUCTION(max, T) \
  TRIREME_REDUCTION(min, T)

#define TRIREME_INTEGER(T) TRIREME_ELEMENT(T) TRIREME_REDUCTION(pairwise, T)

#define TRIREME_REAL(T)                                                                                        \
  TRIREME_ELEMENT(T)                                                                                           \
  TRIREME_REDUCTION(mean, T)                                                                                   \
  TRIREME_REDUCTION(pairwise, T)                                                                               \
  template double cross_entropy_row(T*, std::int64_t, std::int64_t, double, bool, cross_entropy_terms const&); \
  template double target_logit(T const*, std::int64_t, std::int64_t, std::int64_t, double);                    \
  template double row_peak(T const*, std::int64_t);                                                            \
  template double row_mass(T const*, std::int64_t, double);                                                    \
  template void cross_entropy_slope(T*, std::int64_t, std::int64_t, double, double, double,                    \
                                    cross_entropy_terms const&, std::int64_t);                                 \
  template double squared_error_row(T*, T const*, float const*, std::int64_t, double);

TRIREME_REAL(float)
TRIREME_REAL(double)
#ifndef TRIREME_ONLY_FP32
TRIREME_REAL(bfloat16)
TRIREME_REAL(float16)
#endif
TRIREME_INTEGER(std::int64_t)
TRIREME_INTEGER(std::int32_t)
TRIREME_INTEGER(std::uint64_t)
TRIREME_INTEGER(std::uint32_t)
TRIREME_INTEGER(std::int8_t)
TRIREME_INTEGER(std::uint8_t)

template double squared_error_row(double*, double const*, double const*, std::int64_t, double);
template void squares_of_blocks(float const*, std::int64_t, std::int64_t, double*);
template void squares_of_blocks(double const*, std::int64_t, std::int64_t, double*);
template bool all_finite(std::uint16_t const*, std::int64_t, std::uint16_t);
template bool all_finite(std::uint32_t const*, std::int64_t, std::uint32_t);
template bool all_finite(std::uint64_t const*, std::int64_t, std::uint64_t);
template std::uint64_t hash_bits(std::uint8_t const*, std::int64_t, std::uint64_t, std::uint64_t);
template std::uint64_t hash_bits(std::uint16_t const*, std::int64_t, std::uint64_t, std::uint64_t);
template std::uint64_t hash_bits(std::uint32_t const*, std::int64_t, std::uint64_t, std::uint64_t);
template std::uint64_t hash_bits(std::uint64_t const*, std::int64_t, std::uint64_t, std::uint64_t);
template void select_largest(float const*, std::int64_t, std::int32_t*, std::int64_t);
template void select_largest(double const*, std::int64_t, std::int32_t*, std::int64_t);

}  // namespace trireme::ops::detail

#undef TRIREME_REDUCTION
#undef TRIREME_ELEMENT
#undef TRIREME_INTEGER
#undef TRIREME_REAL
