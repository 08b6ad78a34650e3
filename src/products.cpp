// Matrix products: this library's kernels for every CPU level, and Eigen's.
#include "trireme/ops/host/products.ipp"

namespace trireme::ops {

#define TRIREME_TYPE(T)                                                                                              \
  template void host_products::multiply(detail::store_rule<T> const&, T const*, weights<T, host>&,                   \
                                        weights<T, host>::packed_copy&, bool, std::int64_t, std::int64_t,            \
                                        std::int64_t);                                                               \
  template void host_products::multiply_transposed(accumulate_t<T>*, T const*, T const*, std::int64_t, std::int64_t, \
                                                   std::int64_t, accumulate_t<T>*, accumulate_t<T>*);

TRIREME_TYPE(float)
#ifndef TRIREME_ONLY_FP32
TRIREME_TYPE(double)
TRIREME_TYPE(bfloat16)
TRIREME_TYPE(float16)
#endif

}  // namespace trireme::ops

#undef TRIREME_TYPE
