#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/text.hpp"
#include "trireme/core/type_name.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

/// Sends gradients as Wire (bf16, say): half the bytes of float.
///
/// Bytes    sizeof(Wire) per element, on every hop.
/// Numerics each rank's gradient is rounded to Wire; the sum is formed in float in rank order and rounded to Wire
///          again.
/// @models summable_compressor
template <element Wire>
struct cast {
  using policy_category = slot::compression;
  friend bool operator==(cast const&, cast const&) = default;

  template <class Env>
  class instance {
   public:
    using wire = Wire;
    instance(cast const&, std::int64_t) {}
    template <class Gradient, class Payload>
    void encode(Gradient gradient, Payload payload, std::int64_t) {
      ops::on<typename Env::space>::copy(payload, gradient);
    }
    template <class Payload, class Gradient>
    void decode(Payload payload, Gradient gradient) {
      ops::on<typename Env::space>::copy(gradient, payload);
    }
  };
};

template <element Wire>
[[nodiscard]] std::string to_string(cast<Wire> const&) {
  return text("compression::cast<",
              std::is_same_v<Wire, bfloat16>  ? "bf16"
              : std::is_same_v<Wire, float16> ? "f16"
                                              : type_name<Wire>(),
              ">{}");
}

}  // namespace trireme::compression
