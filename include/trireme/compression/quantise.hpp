#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/compression/detail/coded_payload.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

/// How a number between two codes is rounded.
enum class code_rounding {
  stochastic,  ///< to either, so that the mean is the number
  nearest,
};

/// Sends gradients as integers of Bits bits (8, 4 or 2), with one scale for each block of them.
///
/// Method   [Alistarh et al., "QSGD", 2017], with the largest magnitude of a block as its scale. Random numbers
///          depend on the seed, step, bucket, micro-batch, rank and position (core/rng.hpp), so a resumed run draws
///          the same ones.
/// Bytes    Bits / 8 per number (whole 64 bytes per slice), and 4 per block, per rank.
/// Ranks    payloads are decoded and added in rank order; all ranks get equal bits.
/// Numerics stochastic: unbiased; with 2 bits the noise exceeds the gradient, so error_feedback needs .nearest there.
///          nearest: biased; use it with error_feedback. A block with NaN or infinity arrives as NaN; one whose
///          magnitudes are below 2^-100 arrives as zeros.
/// Errors   config_error unless .block is a multiple of 512 / Bits.
/// @models gatherable_compressor          @see compression::error_feedback, compression::sign
template <int Bits>
struct quantise {
  static_assert(Bits == 8 || Bits == 4 || Bits == 2, "trireme::compression::quantise: the bits must be 8, 4 or 2");
  TRIREME_NEEDS_KERNELS("compression::quantise", codes);
  using policy_category = slot::compression;
  std::int64_t block = 256;  ///< numbers that share a scale
  code_rounding rounding = code_rounding::stochastic;
  std::uint64_t seed = 0;  ///< of the random numbers
  friend bool operator==(quantise const&, quantise const&) = default;

  void validate() const { detail::expect_block("quantise", {Bits, block}); }
  void validate_feedback() const {
    if (Bits == 2 && rounding == code_rounding::stochastic)
      throw config_error(
          "trireme::compression::error_feedback: compression::quantise<2> with stochastic rounding has an error that "
          "may be larger than the gradient, so residuals would grow; use .rounding = "
          "compression::code_rounding::nearest, or leave error_feedback out");
  }

  template <class Env>
  class instance {
    using space = typename Env::space;
    using gradient = typename Env::gradient;
    using payload_type = detail::coded_payload<space>;

   public:
    instance(quantise const& description, std::int64_t) : how_(description) { how_.validate(); }
    void at_gradient(encoded_gradient const& which) { which_ = which; }
    [[nodiscard]] std::int64_t payload_bytes(std::int64_t n) const { return payload_type::bytes(form(), n); }
    void encode(tensor_view<gradient, space> slice, tensor_view<std::byte, space> payload, std::int64_t first) {
      payload_type const to(form(), payload, slice.size());
      // Fewer than 2^40 numbers are in a bucket.
      auto const place = static_cast<std::uint64_t>(which_.rank) << 40 | static_cast<std::uint64_t>(first);
      auto const random = detail::stream_of(how_.seed, which_, place);
      ops::on<space>::encode_codes(to.scales, to.codes, slice, form(),
                                   how_.rounding == code_rounding::nearest ? nullptr : &random);
    }
    void decode(tensor_view<std::byte, space> payload, tensor_view<gradient, space> slice, bool add) {
      payload_type const from(form(), payload, slice.size());
      ops::on<space>::decode_codes(slice, from.scales, from.codes, form(), add);
    }

   private:
    [[nodiscard]] ops::code_form form() const { return {Bits, how_.block}; }
    quantise how_;
    encoded_gradient which_{};
  };
};

template <int Bits>
[[nodiscard]] std::string to_string(quantise<Bits> const& c) {
  return text("compression::quantise<", Bits, ">{.block = ", c.block, ", .rounding = compression::code_rounding::",
              c.rounding == code_rounding::nearest ? "nearest" : "stochastic", ", .seed = ", c.seed, "}");
}

}  // namespace trireme::compression
