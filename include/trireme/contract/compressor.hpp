#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/contract/environment.hpp"

namespace trireme {

/// The run state of a compressor for one bucket of `elements` gradients.
template <class C, class Env>
using compressor_state = typename C::template instance<Env>;

template <class C, class Env>
concept has_compressor_state = requires {
  typename C::template instance<Env>;
  requires std::constructible_from<typename C::template instance<Env>, C const&, std::int64_t>;
};

/// A payload that a sum may be formed of: encode, reduce the payload, decode the sum.
///
/// `wire` is the element type of the payload; encode(gradient, payload, first) and decode(payload, gradient) work on
/// equal numbers of elements. `first` says where in the bucket the piece begins (error feedback needs it).
template <class C, class Env>
concept summable_compressor = has_compressor_state<C, Env> && requires {
  typename compressor_state<C, Env>::wire;
} && requires(compressor_state<C, Env>& state, tensor_view<typename Env::gradient, typename Env::space> gradient,
              tensor_view<typename compressor_state<C, Env>::wire, typename Env::space> payload, std::int64_t first) {
  state.encode(gradient, payload, first);
  state.decode(payload, gradient);
};

/// A payload that can only be collected: every rank's payload is decoded and added, in rank order.
///
/// payload_bytes(n) is the fixed size for a piece of n elements; decode(payload, gradient, add) writes or adds.
template <class C, class Env>
concept gatherable_compressor = has_compressor_state<C, Env> && !requires {
  typename compressor_state<C, Env>::wire;
}
&&requires(compressor_state<C, Env>& state, tensor_view<typename Env::gradient, typename Env::space> gradient,
           tensor_view<std::byte, typename Env::space> payload, std::int64_t n, bool add) {
  { state.payload_bytes(n) } -> std::convertible_to<std::int64_t>;
  state.encode(gradient, payload, n);
  state.decode(payload, gradient, add);
};

/// Gradient -> payload -> gradient. Which of the two kinds it is decides the exchange.
template <class C, class Env>
concept compressor = summable_compressor<C, Env> || gatherable_compressor<C, Env>;

/// A compressor that changes nothing; the exchange then skips encode and decode.
template <class C>
concept lossless_identity = requires {
  requires C::identity;
};

/// A compressor that keeps what it left out (error feedback): run state that checkpoints save. encode() only prepares
/// it; commit() makes it the state once every rank has found the step's gradients finite.
template <class S>
concept has_residual = requires(S& state) {
  state.residual();
  state.commit();
};

}  // namespace trireme
