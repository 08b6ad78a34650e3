#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "trireme/contract/environment.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/state.hpp"

// A compressor is of one of three kinds. Summable and gatherable ones code stretches of gradients, and the exchange
// sends what they make. A collective one is given a whole bucket and the communicator.
//
// What every run state may have, whatever its kind:
//   visit_state(state_scope, f)  shows what it keeps from step to step (see state.hpp), by which it is saved, restored
//                                and hashed; tensors are those of the bucket_form that it was made with;
//   commit()                     the step was taken: what was prepared for the next step is the state now. Until then
//                                visit_state() shows the state before the step, to which a skipped step returns;
//   bytes()                      of the memory that it holds, for reports and plans.
// and a summable or gatherable one
//   at_scale(double)             the gradients to come carry this factor, a power of two (a loss scale): what is kept
//                                from step to step is divided by it, since it may change. Without the call it is 1.
// A compressor with commit() is given each gradient once a step, so it does not go with ZeRO-2 and ZeRO-3.

namespace trireme {

/// What lies in one bucket of gradients. Between tensors there may be gaps, whose gradients are zero. The infos belong
/// to the exchange and live longer than its compressors.
struct bucket_form {
  struct entry {
    parameter_info const* info = nullptr;
    std::int64_t offset = 0;  ///< of its first element, in the bucket
  };
  std::int64_t elements = 0;   ///< of the bucket, gaps included
  std::vector<entry> tensors;  ///< in the order of their offsets; none where one run state serves several buckets
};

/// The run state of a summable or gatherable compressor for one bucket.
template <class C, class Env>
using compressor_state = typename C::template instance<Env>;

/// It is made from the number of elements of the bucket, or from the bucket_form if it wants to know the tensors.
template <class C, class Env>
concept has_compressor_state = requires {
  typename C::template instance<Env>;
  requires std::constructible_from<typename C::template instance<Env>, C const&, std::int64_t> ||
      std::constructible_from<typename C::template instance<Env>, C const&, bucket_form const&>;
};

template <class C, class Env>
requires has_compressor_state<C, Env>
[[nodiscard]] compressor_state<C, Env> make_compressor_state(C const& description, bucket_form const& form) {
  if constexpr (std::constructible_from<compressor_state<C, Env>, C const&, bucket_form const&>) {
    return compressor_state<C, Env>(description, form);
  } else {
    return compressor_state<C, Env>(description, form.elements);
  }
}

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

/// Whether a compressor's run state names its communicator: it does the collectives itself.
template <class C, class Env, class Comm>
concept has_collective_state = requires {
  typename C::template instance<Env, Comm>;
};

/// A compressor that does the collectives of a bucket itself, in one round or more, and knows the bucket's tensors: one
/// run state for each bucket, made from (description, bucket_form const&, Comm&).
///
///   begin(gradient, scale)  starts the first round for the whole bucket; the gradients carry the factor `scale`, as in
///                           at_scale().
///   test()                  lets the pending collective proceed, and starts nothing. True when turn() will be true
///                           without waiting.
///   turn()                  waits for the pending collective; then starts the next round, or writes the sum over all
///                           ranks to the gradient and returns true.
///   commit(), bytes()       as above.
/// Ranks    begin() and turn() come in the same order on every rank, so only they may start collectives; test() comes
///          whenever a rank has time. After turn() every rank has the same bits in the gradient.
/// Order    begin(), turn() until it is true, commit() if the step was taken. A step that is given up is turned to its
///          end and not committed.
template <class C, class Env, class Comm>
concept collective_compressor = has_collective_state<C, Env, Comm> &&
    std::constructible_from<typename C::template instance<Env, Comm>, C const&, bucket_form const&, Comm&>&& requires(
        typename C::template instance<Env, Comm>& state,
        tensor_view<typename Env::gradient, typename Env::space> gradient, double scale) {
  state.begin(gradient, scale);
  { state.test() } -> std::same_as<bool>;
  { state.turn() } -> std::same_as<bool>;
  state.commit();
  { state.bytes() } -> std::convertible_to<std::int64_t>;
};

/// Whether C stands for several compressors, one of which is chosen at run time, and each is one (compression::one_of).
template <class C, class Env, class Comm>
inline constexpr bool chooses_compressor = false;

/// Gradient -> payload -> gradient. Which of the kinds it is decides the exchange.
template <class C, class Env, class Comm>
concept compressor = summable_compressor<C, Env> || gatherable_compressor<C, Env> ||
    collective_compressor<C, Env, Comm> || chooses_compressor<C, Env, Comm>;

/// A compressor that changes nothing; the exchange then skips encode and decode.
template <class C>
concept lossless_identity = requires {
  requires C::identity;
};

/// A run state that a taken step changes.
template <class S>
concept has_commit = requires(S& state) {
  state.commit();
};

}  // namespace trireme
