#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.hpp"

// The kernels of compressors that choose elements behind plain functions, as in ops/cuda/launch.hpp;
// ops/cuda/selection.cu has their bodies. Elements are of float or double; n < 2^31.

namespace trireme::ops::cuda_kernels {

/// Bytes of scratch memory, aligned to 16, of a selection of k of n elements; `samples` = 0 for select_largest.
[[nodiscard]] std::size_t selection_bytes(dtype of, std::int64_t n, std::int64_t k, std::int64_t samples);
/// The k elements of largest magnitude, 1 <= k <= n, by ascending indices.
[[nodiscard]] int select_largest(void* stream, void* scratch, dtype of, void const* x, std::int64_t n,
                                 std::int32_t* indices, void* values, std::int64_t k);
/// The same among the first 4 k + 64 elements that reach the magnitude of place `wanted`, counted from 0, of so many
/// samples. If there are fewer than k, the missing ones come first, with index 0 and value 0.
[[nodiscard]] int select_sampled(void* stream, void* scratch, dtype of, void const* x, std::int64_t n,
                                 std::int64_t samples, std::int64_t wanted, std::int32_t* indices, void* values,
                                 std::int64_t k);
/// y[indices[i]] = or += values[i], in order; an index outside of y is left out. `flag` is scratch memory.
[[nodiscard]] int scatter(void* stream, dtype of, void* y, std::int64_t n, std::int32_t const* indices,
                          void const* values, std::int64_t k, bool add, unsigned* flag);

}  // namespace trireme::ops::cuda_kernels
