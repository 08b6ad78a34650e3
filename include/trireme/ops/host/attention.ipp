#pragma once

#include "trireme/ops/host/attention.hpp"
#include "trireme/ops/host/detail/product_packing.hpp"
#include "trireme/ops/host/detail/tiles.hpp"
#include "trireme/ops/host/detail/tiles_packing.hpp"
#include "trireme/ops/host/elementwise.ipp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/attention.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/attention.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/attention.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/attention_tiles.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BF16_BEGIN
#define TRIREME_LEVEL avx512_bf16
#include "trireme/ops/host/detail/attention_pairs.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

template <class T, class A>
void attention_forward_head(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch) {
#if TRIREME_X86
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (detected() >= cpu_level::amx) {
      return avx512::attention_tiles_forward<tile_registers>(y, lse, qkv, shape, scratch, avx512::turn);
    }
    if (detected() >= cpu_level::avx512_bf16) return avx512_bf16::attention_forward(y, lse, qkv, shape, scratch);
  }
#endif
  TRIREME_DISPATCH(fits_float<T>, attention_forward(y, lse, qkv, shape, scratch));
}
template <class T, class A>
void attention_backward_head(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv, attention_head const& shape,
                             A* scratch) {
#if TRIREME_X86
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (detected() >= cpu_level::amx) {
      return avx512::attention_tiles_backward<tile_registers>(dqkv, dy, y, lse, qkv, shape, scratch, avx512::turn);
    }
    if (detected() >= cpu_level::avx512_bf16) {
      return avx512_bf16::attention_backward(dqkv, dy, y, lse, qkv, shape, scratch);
    }
  }
#endif
  TRIREME_DISPATCH(fits_float<T>, attention_backward(dqkv, dy, y, lse, qkv, shape, scratch));
}

}  // namespace trireme::ops::detail
