#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/compression/detail/chosen_elements.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

/// Like top_k, but a threshold that is estimated from a sample limits the search, so the gradient is read only once.
/// Usually it sends the same elements as top_k.
///
/// Method   [Lin et al., "Deep Gradient Compression", 2018]: the threshold is two standard deviations below the value
///          that the sample suggests; of the elements that reach it, the k largest are sent. If there are fewer, the
///          rest of the payload is empty. A piece of less than 4 `samples` elements is searched like top_k's.
/// Bytes    as top_k.      Ranks    as top_k.
/// Numerics lossy and biased; use it with error_feedback. The sample does not depend on random numbers: equal gradients
///          give equal payloads.
/// Errors   config_error unless 0 < ratio <= 1 and samples >= 1.
/// @models gatherable_compressor          @see compression::top_k, compression::error_feedback
struct top_k_sampled {
  TRIREME_NEEDS_KERNELS("compression::top_k_sampled", sampled_selection);
  using policy_category = slot::compression;
  float ratio = 0.01F;
  std::int64_t samples = 16384;  ///< elements from which the threshold is estimated
  friend bool operator==(top_k_sampled const&, top_k_sampled const&) = default;

  void validate() const {
    detail::expect_ratio("top_k_sampled", ratio);
    expect_number("compression::top_k_sampled", ".samples", samples, at_least_one);
  }

  template <class Env>
  class instance {
    using space = typename Env::space;
    using gradient = typename Env::gradient;
    using payload_type = detail::chosen_elements<gradient, space>;

   public:
    instance(top_k_sampled const& description, std::int64_t)
        : ratio_(description.ratio), samples_(description.samples) {
      description.validate();
    }
    [[nodiscard]] std::int64_t payload_bytes(std::int64_t n) const { return payload_type::bytes(kept(n)); }
    void encode(tensor_view<gradient, space> slice, tensor_view<std::byte, space> payload, std::int64_t) {
      payload_type const to(payload, kept(slice.size()));
      ops::on<space>::select_sampled(slice, samples_, to.indices, to.values);
    }
    void decode(tensor_view<std::byte, space> payload, tensor_view<gradient, space> slice, bool add) {
      payload_type const from(payload, kept(slice.size()));
      if (!add) ops::on<space>::fill(slice, 0.0);
      ops::on<space>::scatter(slice, from.indices, from.values, add);
    }

   private:
    [[nodiscard]] std::int64_t kept(std::int64_t n) const { return detail::kept_elements(ratio_, n); }
    float ratio_;
    std::int64_t samples_;
  };
};

[[nodiscard]] inline std::string to_string(top_k_sampled const& c) {
  return text("compression::top_k_sampled{.ratio = ", c.ratio, "f, .samples = ", c.samples, "}");
}

}  // namespace trireme::compression
