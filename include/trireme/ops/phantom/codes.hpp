#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/codes.hpp"
#include "trireme/ops/phantom/checks.hpp"

namespace trireme::ops {

/// Kernels of compressors that quantise, take signs or choose elements, without their numbers.
template <class Space>
struct phantom_codes {
  template <class T>
  using coded = tensor_view<T, Space>;

  template <class G>
  static void encode_codes(coded<float> scales, coded<std::uint8_t> codes, coded<G> x, code_form const& form,
                           random_stream const*) {
    note_kernel<Space>("encode_codes", scales, codes, x);
    detail::expect_code_sizes("encode_codes", form, x.size(), scales.size(), codes.size());
  }
  template <class G>
  static void decode_codes(coded<G> y, coded<float const> scales, coded<std::uint8_t const> codes,
                           code_form const& form, bool) {
    note_kernel<Space>("decode_codes", y, scales, codes);
    detail::expect_code_sizes("decode_codes", form, y.size(), scales.size(), codes.size());
  }
  template <class T, class G>
  static void gather_drawn(coded<T> x, coded<G> y, random_stream const&, bool) noexcept {
    note_kernel<Space>("gather_drawn", x, y);
  }
  template <class G, class T>
  static void scatter_drawn(coded<G> x, coded<T> y, random_stream const&) noexcept {
    note_kernel<Space>("scatter_drawn", x, y);
  }
  template <class G>
  static void select_sampled(coded<G> x, std::int64_t, coded<std::int32_t> indices,
                             typename phantom_checks<Space>::template output<std::remove_const_t<G>> values) {
    note_kernel<Space>("select_sampled", x, indices, values);
    expects(assertion_level::light, indices.size() == values.size() && indices.size() <= x.size(),
            [] { return std::string("trireme::ops::select_sampled: more elements asked for than there are"); });
  }
};

}  // namespace trireme::ops
