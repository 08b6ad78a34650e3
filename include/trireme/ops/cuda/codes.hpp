#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/codes.hpp"
#include "trireme/ops/cuda/codes_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"

namespace trireme::ops {

/// Kernels of compressors that quantise, take signs or draw elements, for gradients of float or double in CUDA memory.
///
/// Numerics the host's bits (ops/host/codes.hpp).
/// Threads  thread-safe on different outputs.
/// Errors   assertion_error (light) if sizes do not fit; device_error with CUDA's message if work cannot be queued.
struct cuda_codes {
  template <class T>
  using coded = tensor_view<T, cuda>;

  /// x as codes and scales (code_form); nullptr rounds to the nearest code.
  template <class G>
  requires std::is_floating_point_v<std::remove_const_t<G>>
  static void encode_codes(coded<float> scales, coded<std::uint8_t> codes, coded<G> x, code_form const& form,
                           random_stream const* rounding) {
    detail::expect_code_sizes("encode_codes", form, x.size(), scales.size(), codes.size());
    detail::expect_cuda("encode_codes",
                        cuda_kernels::encode_codes(cuda::stream(), raw(scales), raw(codes),
                                                   dtype_of<std::remove_const_t<G>>, raw(x), x.size(), form, rounding));
  }
  /// y = or += what encode_codes has written.
  template <class G>
  requires std::is_floating_point_v<G>
  static void decode_codes(coded<G> y, coded<float const> scales, coded<std::uint8_t const> codes,
                           code_form const& form, bool add) {
    detail::expect_code_sizes("decode_codes", form, y.size(), scales.size(), codes.size());
    detail::expect_cuda("decode_codes", cuda_kernels::decode_codes(cuda::stream(), dtype_of<G>, raw(y), raw(scales),
                                                                   raw(codes), y.size(), form, add));
  }

  /// values[i] = an element of x drawn from the i-th of k = values.size() strata; multiplied by the size of the stratum
  /// if `weighted`.
  template <class T, class G>
  requires(detail::cuda_float<T>&& std::is_floating_point_v<std::remove_const_t<G>>) static void gather_drawn(
      coded<T> values, coded<G> x, random_stream const& drawn, bool weighted) {
    expect_strata("gather_drawn", values.size(), x.size());
    detail::expect_cuda("gather_drawn", cuda_kernels::gather_drawn(cuda::stream(), dtype_of<T>, raw(values),
                                                                   values.size(), dtype_of<std::remove_const_t<G>>,
                                                                   raw(x), x.size(), drawn, weighted));
  }
  /// Writes the values to the elements of y that gather_drawn chose for the same numbers.
  template <class G, class T>
  requires(std::is_floating_point_v<G>&& detail::cuda_float<std::remove_const_t<T>>) static void scatter_drawn(
      coded<G> y, coded<T> values, random_stream const& drawn) {
    expect_strata("scatter_drawn", values.size(), y.size());
    detail::expect_cuda("scatter_drawn", cuda_kernels::scatter_drawn(cuda::stream(), dtype_of<G>, raw(y), y.size(),
                                                                     dtype_of<std::remove_const_t<T>>, raw(values),
                                                                     values.size(), drawn));
  }

 private:
  // An empty stratum has no element; two of them would write one element in any order.
  static void expect_strata(char const* who, std::int64_t k, std::int64_t n) {
    expects(assertion_level::light, k <= n,
            [&] { return text("trireme::ops::", who, ": ", k, " elements of ", n, " asked for"); });
  }
};

}  // namespace trireme::ops
