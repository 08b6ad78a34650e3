#pragma once

#include "trireme/ops/host/simd.hpp"
#include "trireme/ops/host/updates.hpp"
#include "trireme/ops/update_constants.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/update_math.inl"
#include "trireme/ops/host/detail/updates.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/update_math.inl"
#include "trireme/ops/host/detail/updates.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/update_math.inl"
#include "trireme/ops/host/detail/updates.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

template <class M, class G, class P>
void adamw_elements(M* value, M* first, M* second, std::int64_t n, gradient_terms<G, host> const& gradient,
                    std::span<tensor_view<P, host> const> outputs, adamw_numbers const& numbers) {
  TRIREME_DISPATCH((fits_float<M, G, P>), adamw(value, first, second, n, gradient, outputs, numbers));
}
template <class M, class G, class P>
void sgd_elements(M* value, M* velocity, std::int64_t n, gradient_terms<G, host> const& gradient,
                  std::span<tensor_view<P, host> const> outputs, sgd_numbers const& numbers) {
  TRIREME_DISPATCH((fits_float<M, G, P>), sgd(value, velocity, n, gradient, outputs, numbers));
}

}  // namespace trireme::ops::detail
