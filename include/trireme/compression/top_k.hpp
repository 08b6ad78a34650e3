#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/compression/detail/chosen_elements.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

/// Sends only the largest elements of each piece, as (index, value) pairs. Without error_feedback around it, the other
/// elements are lost.
///
/// Shapes   a piece of n gradients keeps k = ceil(ratio * n), at least 1.
/// Bytes    k * (4 + sizeof(gradient)) per piece and rank.
/// Ranks    payloads are decoded and added in rank order; all ranks get equal bits.
/// Numerics lossy and biased; top_k{.ratio = 1} equals none bit for bit (a test).
/// Errors   config_error unless 0 < ratio <= 1.
/// @models gatherable_compressor          @see compression::error_feedback
struct top_k {
  TRIREME_NEEDS_KERNELS("compression::top_k", selection);
  using policy_category = slot::compression;
  float ratio = 0.01F;
  friend bool operator==(top_k const&, top_k const&) = default;

  void validate() const { detail::expect_ratio("top_k", ratio); }

  template <class Env>
  class instance {
   public:
    using space = typename Env::space;
    using gradient = typename Env::gradient;

    instance(top_k const& description, std::int64_t) : ratio_(description.ratio) { description.validate(); }
    [[nodiscard]] std::int64_t payload_bytes(std::int64_t n) const { return payload_type::bytes(kept(n)); }
    void encode(tensor_view<gradient, space> slice, tensor_view<std::byte, space> payload, std::int64_t) {
      payload_type const to(payload, kept(slice.size()));
      ops::on<space>::select_largest(slice, to.indices, to.values);
    }
    void decode(tensor_view<std::byte, space> payload, tensor_view<gradient, space> slice, bool add) {
      payload_type const from(payload, kept(slice.size()));
      if (!add) ops::on<space>::fill(slice, 0.0);
      ops::on<space>::scatter(slice, from.indices, from.values, add);
    }

   private:
    using payload_type = detail::chosen_elements<gradient, space>;
    [[nodiscard]] std::int64_t kept(std::int64_t n) const { return detail::kept_elements(ratio_, n); }
    float ratio_;
  };
};

[[nodiscard]] inline std::string to_string(top_k const& c) {
  return text("compression::top_k{.ratio = ", c.ratio, "f}");
}

}  // namespace trireme::compression
