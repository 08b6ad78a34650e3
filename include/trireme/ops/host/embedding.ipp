#pragma once

#include "trireme/ops/host/embedding.hpp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/embedding.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/embedding.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/embedding.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops::detail {

template <class T>
void embed_rows(T* y, std::int32_t const* tokens, T const* table, T const* positions, std::int64_t rows,
                std::int64_t context, std::int64_t channels, std::int64_t first, std::int64_t words) {
  TRIREME_DISPATCH(fits_float<T>, embed(y, tokens, table, positions, rows, context, channels, first, words));
}

TRIREME_BODY void tokens_within(char const* who, tensor_view<std::int32_t const, host> tokens,
                                std::int64_t vocabulary) {
  if (!asserts(assertion_level::normal)) return;
  for (auto const token : tokens.span()) {
    if (token < 0 || token >= vocabulary) {
      throw config_error(text("trireme::ops::", who, ": token ", token, " is outside a vocabulary of ", vocabulary));
    }
  }
}

}  // namespace trireme::ops::detail
