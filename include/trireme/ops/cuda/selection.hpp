#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/cuda/selection_launch.hpp"
#include "trireme/ops/host/elementwise.hpp"

namespace trireme::ops {

/// Kernels of compressors that choose elements, for gradients of float or double in CUDA memory.
///
/// Shapes   fewer than 2^31 elements.
/// Numerics the host's bits (ops/host/reductions.hpp, ops/host/codes.hpp).
/// Bytes    scratch memory of this thread's device: 8 KB, and 8 bytes for each 1024 elements; select_sampled also has
///          its samples and 4 k + 64 elements with their indices there.
/// Threads  thread-safe on different outputs.
/// Errors   assertion_error (light) if sizes do not fit; device_error with CUDA's message if work cannot be queued.
struct cuda_selection {
  template <class T>
  using chosen = tensor_view<T, cuda>;

  /// The k elements of largest magnitude, k = indices.size(); of equal magnitudes the smaller index is taken; indices
  /// ascend.
  template <class G>
  requires std::is_floating_point_v<std::remove_const_t<G>>
  static void select_largest(chosen<G> x, chosen<std::int32_t> indices,
                             std::type_identity_t<chosen<std::remove_const_t<G>>> values) {
    expect_sizes("select_largest", x.size(), indices.size(), values.size());
    if (!indices.empty()) select("select_largest", raw(x), x.size(), raw(indices), raw(values), indices.size());
  }

  /// Like select_largest, but a threshold from about `samples` elements limits the search. If fewer than k elements
  /// reach the threshold, the missing ones come first, with index 0 and value 0.
  template <class G>
  requires std::is_floating_point_v<std::remove_const_t<G>>
  static void select_sampled(chosen<G> x, std::int64_t samples, chosen<std::int32_t> indices,
                             std::type_identity_t<chosen<std::remove_const_t<G>>> values) {
    constexpr auto* who = "select_sampled";
    auto const n = x.size();
    auto const k = indices.size();
    expect_sizes(who, n, k, values.size());
    if (k == 0) return;
    // The rank that k has in the sample, and two standard deviations more: usually at least k elements are found.
    auto const rank = static_cast<double>(k) / static_cast<double>(n) * static_cast<double>(samples);
    auto const wanted = static_cast<std::int64_t>(rank + 2 * std::sqrt(std::max(rank, 0.0)) + 1);
    if (samples < 1 || n < 4 * samples || wanted >= samples)
      return select(who, raw(x), n, raw(indices), raw(values), k);
    constexpr auto type = dtype_of<std::remove_const_t<G>>;
    auto* const scratch = detail::cuda_scratch(who, cuda_kernels::selection_bytes(type, n, k, samples));
    detail::expect_cuda(who, cuda_kernels::select_sampled(cuda::stream(), scratch, type, raw(x), n, samples, wanted,
                                                          raw(indices), raw(values), k));
  }

  /// y[indices[i]] = or += values[i], in order. Fast if the indices ascend (equal ones may follow each other), as those
  /// of the functions above. An index outside of y, which the host refuses, is left out.
  template <class G>
  requires std::is_floating_point_v<G>
  static void scatter(chosen<G> y, chosen<std::int32_t const> indices, std::type_identity_t<chosen<G const>> values,
                      bool add) {
    detail::same_size("scatter", indices.size(), values.size());
    auto* const flag = detail::cuda_scratch("scatter", sizeof(unsigned));
    detail::expect_cuda("scatter",
                        cuda_kernels::scatter(cuda::stream(), dtype_of<G>, raw(y), y.size(), raw(indices), raw(values),
                                              indices.size(), add, static_cast<unsigned*>(flag)));
  }

 private:
  static void expect_sizes(char const* who, std::int64_t n, std::int64_t k, std::int64_t values) {
    detail::same_size(who, k, values);
    expects(assertion_level::light, k <= n,
            [&] { return text("trireme::ops::", who, ": ", k, " of ", how_many(n, "element"), " asked for"); });
  }
  template <class G>
  static void select(char const* who, G const* x, std::int64_t n, std::int32_t* indices, G* values, std::int64_t k) {
    auto* const scratch = detail::cuda_scratch(who, cuda_kernels::selection_bytes(dtype_of<G>, n, k, 0));
    detail::expect_cuda(who,
                        cuda_kernels::select_largest(cuda::stream(), scratch, dtype_of<G>, x, n, indices, values, k));
  }
};

}  // namespace trireme::ops
