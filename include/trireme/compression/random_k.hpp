#pragma once

#include <cstdint>
#include <string>

#include "trireme/compression/detail/chosen_elements.hpp"
#include "trireme/compression/detail/coded_payload.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

/// Sends randomly drawn elements, the same ones on every rank: their values are summed, and no index is sent.
///
/// Method   [Wangni et al., "Gradient sparsification", 2018], and with error_feedback [Stich et al., "Sparsified
///          SGD with memory", 2018]. A piece of n gradients is divided into k strata of n / k; one element of each is
///          drawn from the seed, step, bucket and micro-batch, so a resumed run draws the same ones.
/// Shapes   a piece of n gradients keeps k = ceil(ratio * n), at least 1.
/// Bytes    one reduction of k numbers of the wire type (precision's `reduce`) per piece.
/// Ranks    every rank draws the same elements.
/// Numerics .unbiased multiplies by the size of the stratum, so that the mean is the gradient; the noise is then n / k
///          times the gradient, so error_feedback refuses it. Without it, the elements are sent as they are. ratio = 1
///          equals none bit for bit.
/// Errors   config_error unless 0 < ratio <= 1.
/// @models summable_compressor          @see compression::error_feedback, compression::top_k
struct random_k {
  TRIREME_NEEDS_KERNELS("compression::random_k", drawing);
  using policy_category = slot::compression;
  float ratio = 0.01F;
  bool unbiased = false;
  std::uint64_t seed = 0;  ///< of the random numbers
  friend bool operator==(random_k const&, random_k const&) = default;

  void validate() const { detail::expect_ratio("random_k", ratio); }
  void validate_feedback() const {
    if (unbiased)
      throw config_error(
          "trireme::compression::error_feedback: compression::random_k with .unbiased = true has an error larger than "
          "the gradient, so residuals would grow; leave .unbiased or error_feedback out");
  }

  template <class Env>
  class instance {
    using space = typename Env::space;
    using gradient = typename Env::gradient;

   public:
    using wire = typename Env::reduce;
    instance(random_k const& description, std::int64_t)
        : ratio_(description.ratio), unbiased_(description.unbiased), seed_(description.seed) {
      description.validate();
    }
    void at_gradient(encoded_gradient const& which) { which_ = which; }
    [[nodiscard]] std::int64_t payload_elements(std::int64_t n) const { return detail::kept_elements(ratio_, n); }
    void encode(tensor_view<gradient, space> slice, tensor_view<wire, space> payload, std::int64_t) {
      ops::on<space>::gather_drawn(payload, slice, drawn(), unbiased_);
    }
    void decode(tensor_view<wire, space> payload, tensor_view<gradient, space> slice) {
      ops::on<space>::fill(slice, 0.0);
      ops::on<space>::scatter_drawn(slice, payload, drawn());
    }

   private:
    [[nodiscard]] ops::random_stream drawn() const { return detail::stream_of(seed_, which_, 0); }
    float ratio_;
    bool unbiased_;
    std::uint64_t seed_;
    encoded_gradient which_{};
  };
};

[[nodiscard]] inline std::string to_string(random_k const& c) {
  return text("compression::random_k{.ratio = ", c.ratio, "f, .unbiased = ", c.unbiased ? "true" : "false",
              ", .seed = ", c.seed, "}");
}

}  // namespace trireme::compression
