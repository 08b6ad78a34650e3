// Elementwise kernels, row lookups, norms and attention, for all element types.
#include "trireme/ops/host/attention.ipp"
#include "trireme/ops/host/attention_block.ipp"
#include "trireme/ops/host/elementwise.ipp"
#include "trireme/ops/host/embedding.ipp"
#include "trireme/ops/host/heads.ipp"
#include "trireme/ops/host/normalisation.ipp"
#include "trireme/ops/host/paged_attention.ipp"

namespace trireme::ops::detail {

#define TRIREME_PAIR(T, U)                                    \
  template void convert_elements(T*, U const*, std::int64_t); \
  template void accumulate_elements(T*, U const*, std::int64_t, double);

#define TRIREME_TYPE(T)                                                                                             \
  TRIREME_PAIR(T, float)                                                                                            \
  TRIREME_PAIR(T, double)                                                                                           \
  TRIREME_PAIR(T, bfloat16)                                                                                         \
  TRIREME_PAIR(T, float16)                                                                                          \
  template void scale_elements(T*, std::int64_t, double);                                                           \
  template void multiply_elements(T*, T const*, T const*, std::int64_t);                                            \
  template void activate_elements(T*, T const*, std::int64_t, activation);                                          \
  template void activate_backward_elements(T*, T const*, T const*, std::int64_t, activation);                       \
  template void dropout_elements(T*, std::int64_t, std::int64_t, dropout_site const&, std::uint64_t);               \
  template void initialise_elements(T*, std::int64_t, initial, std::uint64_t, std::uint64_t, std::int64_t);         \
  template void embed_rows(T*, std::int32_t const*, T const*, T const*, std::int64_t, std::int64_t, std::int64_t,   \
                           std::int64_t, std::int64_t);                                                             \
  template void layer_norm_rows(T*, accumulate_t<T>*, accumulate_t<T>*, T const*, T const*, T const*, std::int64_t, \
                                std::int64_t, double);                                                              \
  template void layer_norm_backward_rows(T*, accumulate_t<T>*, accumulate_t<T>*, T const*, T const*,                \
                                         accumulate_t<T> const*, accumulate_t<T> const*, T const*, std::int64_t,    \
                                         std::int64_t, bool);                                                       \
  template void rms_norm_rows(T*, accumulate_t<T>*, T const*, T const*, std::int64_t, std::int64_t, double);        \
  template void rms_norm_backward_rows(T*, accumulate_t<T>*, T const*, T const*, accumulate_t<T> const*, T const*,  \
                                       std::int64_t, std::int64_t, bool);                                           \
  template void arrange_rows(T*, T const*, accumulate_t<T> const*, head_layout const&, std::int64_t);               \
  template void arrange_backward_rows(T*, T const*, accumulate_t<T> const*, head_layout const&, std::int64_t);      \
  template void normalise_head_rows(T*, accumulate_t<T>*, T const*, T const*, T const*, head_layout const&,         \
                                    std::int64_t, double);                                                          \
  template void normalise_backward_head_rows(T*, accumulate_t<T>*, accumulate_t<T>*, T const*, T const*,            \
                                             accumulate_t<T> const*, T const*, T const*, head_layout const&,        \
                                             std::int64_t);

TRIREME_TYPE(float)
#ifndef TRIREME_ONLY_FP32
TRIREME_TYPE(double)
TRIREME_TYPE(bfloat16)
TRIREME_TYPE(float16)
#endif

#define TRIREME_ATTENTION(T)                                                                                     \
  template void attention_forward_head(T*, accumulate_t<T>*, T const*, attention_head const&, accumulate_t<T>*); \
  template void attention_backward_head(T*, T const*, T const*, accumulate_t<T> const*, T const*,                \
                                        attention_head const&, accumulate_t<T>*);                                \
  template void attend_block_head(accumulate_t<T>*, accumulate_t<T>*, T const*, T const*, attention_head const&, \
                                  attention_block const&, accumulate_t<T>*);                                     \
  template void attend_block_backward_head(accumulate_t<T>*, accumulate_t<T>*, T const*, T const*,               \
                                           accumulate_t<T> const*, T const*, T const*, attention_head const&,    \
                                           attention_block const&, accumulate_t<T>*);                            \
  template void attend_paged_rows(T*, T*, T const*, paged_rows const&, paged_heads const&, accumulate_t<T>*);

TRIREME_ATTENTION(float)
#ifndef TRIREME_ONLY_FP32
TRIREME_ATTENTION(double)
TRIREME_ATTENTION(bfloat16)
TRIREME_ATTENTION(float16)
#endif

}  // namespace trireme::ops::detail

#undef TRIREME_PAIR
#undef TRIREME_TYPE
#undef TRIREME_ATTENTION
