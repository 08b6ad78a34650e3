#pragma once

#include <cstdint>
#include <string>

#include "trireme/contract/compressor.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::compression {

/// Sends gradients uncompressed: the default.
struct none {
  using policy_category = slot::compression;
  static constexpr bool identity = true;
  friend bool operator==(none const&, none const&) = default;

  template <class Env>
  class instance {
   public:
    using wire = typename Env::reduce;
    instance(none const&, std::int64_t) {}
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

[[nodiscard]] inline std::string to_string(none const&) { return "compression::none{}"; }

}  // namespace trireme::compression
