#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/address.hpp"
#include "trireme/core/error.hpp"
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

  void validate() const {
    if (!(ratio > 0 && ratio <= 1))
      throw config_error(text("trireme::compression::top_k: ratio ", ratio, " is not in (0, 1]"));
  }

  template <class Env>
  class instance {
   public:
    using space = typename Env::space;
    using gradient = typename Env::gradient;

    instance(top_k const& description, std::int64_t) : ratio_(description.ratio) { description.validate(); }
    [[nodiscard]] std::int64_t payload_bytes(std::int64_t n) const {
      auto const k = kept(n);
      return round_up(values_offset(k) + k * static_cast<std::int64_t>(sizeof(gradient)));
    }
    void encode(tensor_view<gradient, space> slice, tensor_view<std::byte, space> payload, std::int64_t) {
      auto const k = kept(slice.size());
      ops::on<space>::select_largest(slice, indices(payload, k), values(payload, k));
    }
    void decode(tensor_view<std::byte, space> payload, tensor_view<gradient, space> slice, bool add) {
      auto const k = kept(slice.size());
      if (!add) ops::on<space>::fill(slice, 0.0);
      ops::on<space>::scatter(slice, indices(payload, k), values(payload, k), add);
    }

   private:
    [[nodiscard]] std::int64_t kept(std::int64_t n) const {
      auto const wanted = static_cast<std::int64_t>(std::ceil(static_cast<double>(ratio_) * static_cast<double>(n)));
      return std::clamp<std::int64_t>(wanted, std::min<std::int64_t>(n, 1), n);
    }
    // Values, and the next payload, start at a multiple of 8 bytes for every k.
    static std::int64_t round_up(std::int64_t bytes) { return (bytes + 7) / 8 * 8; }
    static std::int64_t values_offset(std::int64_t k) { return round_up(k * 4); }
    static tensor_view<std::int32_t, space> indices(tensor_view<std::byte, space> payload, std::int64_t k) {
      return {elements_at<std::int32_t>(payload.address()), shape{k}};
    }
    static tensor_view<gradient, space> values(tensor_view<std::byte, space> payload, std::int64_t k) {
      return {elements_at<gradient>(payload.address() + values_offset(k)), shape{k}};
    }
    float ratio_;
  };
};

[[nodiscard]] inline std::string to_string(top_k const& c) {
  return text("compression::top_k{.ratio = ", c.ratio, "f}");
}

}  // namespace trireme::compression
