// Optimizer steps, for all types of masters, gradients and parameters.
#include "trireme/ops/host/updates.ipp"

namespace trireme::ops::detail {

#define TRIREME_UPDATE(M, G, P)                                                              \
  template void adamw_elements(M*, M*, M*, std::int64_t, gradient_terms<G, host> const&,     \
                               std::span<tensor_view<P, host> const>, adamw_numbers const&); \
  template void sgd_elements(M*, M*, std::int64_t, gradient_terms<G, host> const&,           \
                             std::span<tensor_view<P, host> const>, sgd_numbers const&);

#ifdef TRIREME_ONLY_FP32
TRIREME_UPDATE(float, float, float)
#else
#define TRIREME_GRADIENT(M, G)   \
  TRIREME_UPDATE(M, G, float)    \
  TRIREME_UPDATE(M, G, double)   \
  TRIREME_UPDATE(M, G, bfloat16) \
  TRIREME_UPDATE(M, G, float16)

#define TRIREME_MASTER(M)       \
  TRIREME_GRADIENT(M, float)    \
  TRIREME_GRADIENT(M, double)   \
  TRIREME_GRADIENT(M, bfloat16) \
  TRIREME_GRADIENT(M, float16)

TRIREME_MASTER(float)
TRIREME_MASTER(double)
TRIREME_MASTER(bfloat16)
TRIREME_MASTER(float16)
#undef TRIREME_GRADIENT
#undef TRIREME_MASTER
#endif

}  // namespace trireme::ops::detail

#undef TRIREME_UPDATE
