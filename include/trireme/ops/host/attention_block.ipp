#pragma once

#include "trireme/ops/host/attention.ipp"
#include "trireme/ops/host/attention_block.hpp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/attention_block.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/attention_block.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/attention_block.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

template <class T, class A>
void attend_block_head(A* y, A* lse, T const* queries, T const* pairs, attention_head const& shape,
                       attention_block const& at, A* scratch) {
  TRIREME_DISPATCH(fits_float<T>, attend_block(y, lse, queries, pairs, shape, at, scratch));
}
template <class T, class A>
void attend_block_backward_head(A* dqueries, A* dpairs, T const* dy, T const* y, A const* lse, T const* queries,
                                T const* pairs, attention_head const& shape, attention_block const& at, A* scratch) {
  TRIREME_DISPATCH(fits_float<T>,
                   attend_block_backward(dqueries, dpairs, dy, y, lse, queries, pairs, shape, at, scratch));
}

}  // namespace trireme::ops::detail
