// Kernels of compressors.
#include "trireme/ops/host/codes.ipp"
#include "trireme/ops/host/low_rank.ipp"

namespace trireme::ops::detail {

#define TRIREME_GRADIENT(G)                                                                                          \
  template void encode_codes(float*, std::uint8_t*, G const*, std::int64_t, code_form const&, random_stream const*); \
  template void decode_codes(G*, float const*, std::uint8_t const*, std::int64_t, code_form const&, bool);           \
  template std::int64_t select_sampled(G const*, std::int64_t, std::int32_t*, std::int64_t, std::int64_t);           \
  template void small_product(G*, G const*, bool, G const*, bool, std::int64_t, std::int64_t, std::int64_t);         \
  template void product_of_sum(G*, G*, G const*, double, G const*, std::int64_t, std::int64_t, std::int64_t);        \
  template void rest_and_product(G*, G*, G const*, G const*, G const*, double, std::int64_t, std::int64_t,           \
                                 std::int64_t);

TRIREME_GRADIENT(float)
TRIREME_GRADIENT(double)

}  // namespace trireme::ops::detail

#undef TRIREME_GRADIENT
