#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "trireme/contract/compressor.hpp"
#include "trireme/core/address.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/codes.hpp"

namespace trireme::compression::detail {

inline void expect_block(std::string_view name, ops::code_form const& form) {
  if (form.block > 0 && form.block % form.group() == 0) return;
  throw config_error(text("trireme::compression::", name, ": .block is ", form.block, "; it must be a multiple of ",
                          form.group(), ", so that the codes of a block fill whole groups of 64 bytes"));
}

/// The random numbers of a gradient, or of a slice of it: the same ones for the same arguments.
[[nodiscard]] inline ops::random_stream stream_of(std::uint64_t seed, encoded_gradient const& which,
                                                  std::uint64_t sample) {
  auto const exchange =
      mix(mix(static_cast<std::uint64_t>(which.bucket)) + static_cast<std::uint64_t>(which.micro_batch));
  return {.key = {seed ^ exchange, static_cast<std::uint64_t>(which.step)}, .site = 0x636f6465U, .sample = sample};
}

/// A payload of numbers of few bits: the scales, then the codes, which start at a multiple of 8 bytes.
template <class Space>
struct coded_payload {
  tensor_view<float, Space> scales;
  tensor_view<std::uint8_t, Space> codes;

  coded_payload(ops::code_form const& form, tensor_view<std::byte, Space> payload, std::int64_t n)
      : scales(elements_at<float>(payload.address()), shape{form.scales(n)}),
        codes(elements_at<std::uint8_t>(payload.address() + scale_bytes(form, n)), shape{form.code_bytes(n)}) {}
  [[nodiscard]] static std::int64_t bytes(ops::code_form const& form, std::int64_t n) {
    return scale_bytes(form, n) + form.code_bytes(n);
  }

 private:
  static std::int64_t scale_bytes(ops::code_form const& form, std::int64_t n) {
    return (form.scales(n) * 4 + 7) / 8 * 8;
  }
};

}  // namespace trireme::compression::detail
