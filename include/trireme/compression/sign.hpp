#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/compression/detail/coded_payload.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

/// Sends the sign of each gradient, one bit, and for each block of them the mean of their magnitudes.
///
/// Method   [Seide et al., "1-bit stochastic gradient descent", 2014] with a scale as in [Karimireddy et al.,
///          2019]. Use it with error_feedback: without it, small gradients are lost.
/// Bytes    1/8 per number (whole 64 bytes per slice), and 4 per block, per rank.
/// Ranks    payloads are decoded and added in rank order; all ranks get equal bits.
/// Numerics lossy and biased. 0 counts as positive. A block with NaN or infinity arrives as NaN; one whose mean
///          magnitude is below 2^-100 arrives as zeros.
/// Errors   config_error unless .block is a multiple of 512.
/// @models gatherable_compressor          @see compression::error_feedback, compression::quantise
struct sign {
  TRIREME_NEEDS_KERNELS("compression::sign", codes);
  using policy_category = slot::compression;
  std::int64_t block = 512;  ///< numbers that share a scale
  friend bool operator==(sign const&, sign const&) = default;

  void validate() const { detail::expect_block("sign", {1, block}); }

  template <class Env>
  class instance {
    using space = typename Env::space;
    using gradient = typename Env::gradient;
    using payload_type = detail::coded_payload<space>;

   public:
    instance(sign const& description, std::int64_t) : form_{1, description.block} { description.validate(); }
    [[nodiscard]] std::int64_t payload_bytes(std::int64_t n) const { return payload_type::bytes(form_, n); }
    void encode(tensor_view<gradient, space> slice, tensor_view<std::byte, space> payload, std::int64_t) {
      payload_type const to(form_, payload, slice.size());
      ops::on<space>::encode_codes(to.scales, to.codes, slice, form_, nullptr);
    }
    void decode(tensor_view<std::byte, space> payload, tensor_view<gradient, space> slice, bool add) {
      payload_type const from(form_, payload, slice.size());
      ops::on<space>::decode_codes(slice, from.scales, from.codes, form_, add);
    }

   private:
    ops::code_form form_;
  };
};

[[nodiscard]] inline std::string to_string(sign const& c) { return text("compression::sign{.block = ", c.block, "}"); }

}  // namespace trireme::compression
