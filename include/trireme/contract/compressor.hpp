#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "trireme/contract/environment.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/state.hpp"

// There are three kinds of compressors. Summable and gatherable ones encode slices of gradients, and the exchange sends
// the payloads. A collective one gets a whole bucket and the communicator.
//
// Every run state may have, whatever its kind:
//   visit_state(state_scope, f)  visits the state that it keeps between steps (see state.hpp), to save, restore and
//                                hash it; tensors are those of the bucket_form that it was made with;
//   commit()                     the step was taken: the state prepared for the next step becomes the current one.
//                                Until then visit_state() visits the state before the step, to which a skipped step
//                                returns;
//   bytes()                      of the memory that it holds, for reports and plans.
// A summable or gatherable one may also have:
//   at_scale(double)             the next gradients carry this factor, a power of two (a loss scale): state kept
//                                between steps is divided by it, since it may change. Without the call it is 1.
//   at_gradient(encoded_gradient const&)   which gradient the next calls of encode() and decode() are for: random
//                                numbers depend on it, and not on earlier calls, so that a resumed run draws the same.
// A collective one may have at_gradient(), too; it is then called before begin(). It may also have
//   takes_rounds()               whether it needs several rounds; if not, the exchange does not call turn() before the
//                                end of backward. Without the function it does.
// A description whose compressor applies momentum to gradients may have
//   expect_momentum(double)      throws config_error if the optimizer, whose momentum this is, must not apply it, too.
// A compressor with commit() gets each gradient once a step, so it cannot be combined with ZeRO-2 and ZeRO-3.

namespace trireme {

/// The contents of one bucket of gradients. Between tensors there may be gaps, whose gradients are zero. The infos
/// belong to the exchange and outlive its compressors.
struct bucket_form {
  struct entry {
    parameter_info const* info = nullptr;
    std::int64_t offset = 0;  ///< of its first element, in the bucket
  };
  std::int64_t elements = 0;   ///< of the bucket, gaps included
  std::vector<entry> tensors;  ///< in the order of their offsets; empty if one run state is used for several buckets
};

/// Which gradient is encoded next. No two of a run that a rank sends are equal; those of the ranks that form one sum
/// differ only in `rank`.
struct encoded_gradient {
  std::int64_t step = 0;         ///< number of the step in the run
  std::int64_t bucket = 0;       ///< number of the bucket; uses of a tied tensor that are sent one by one are counted
  std::int64_t micro_batch = 0;  ///< number of this exchange of the bucket in the step
  int rank = 0;                  ///< among those whose gradients are summed
  int ranks = 1;                 ///< the number of those
  friend bool operator==(encoded_gradient const&, encoded_gradient const&) = default;
};

/// The run state of a summable or gatherable compressor for one bucket.
template <class C, class Env>
using compressor_state = typename C::template instance<Env>;

/// Made from the number of elements of the bucket, or from the bucket_form if it needs the tensors.
template <class C, class Env>
concept has_compressor_state = requires {
  typename C::template instance<Env>;
  requires std::constructible_from<typename C::template instance<Env>, C const&, std::int64_t> ||
      std::constructible_from<typename C::template instance<Env>, C const&, bucket_form const&>;
};

/// The run state of a compressor for one bucket.
template <class C, class Env>
requires has_compressor_state<C, Env>
[[nodiscard]] compressor_state<C, Env> make_compressor_state(C const& description, bucket_form const& form) {
  if constexpr (std::constructible_from<compressor_state<C, Env>, C const&, bucket_form const&>) {
    return compressor_state<C, Env>(description, form);
  } else {
    return compressor_state<C, Env>(description, form.elements);
  }
}

/// A compressor whose payloads can be summed: encode, reduce the payload, decode the sum.
///
/// `wire` is the element type of the payload; encode(gradient, payload, first) and decode(payload, gradient) get equal
/// numbers of elements, unless the state has payload_elements(n), the number of a slice of n gradients: then the
/// payload has that many, and decode() gets slice by slice, too. `first` is the offset of the slice in the bucket
/// (error feedback needs it).
template <class C, class Env>
concept summable_compressor = has_compressor_state<C, Env> && requires {
  typename compressor_state<C, Env>::wire;
} && requires(compressor_state<C, Env>& state, tensor_view<typename Env::gradient, typename Env::space> gradient,
              tensor_view<typename compressor_state<C, Env>::wire, typename Env::space> payload, std::int64_t first) {
  state.encode(gradient, payload, first);
  state.decode(payload, gradient);
};

/// A compressor whose payloads can only be gathered: every rank's payload is decoded and added, in rank order.
///
/// payload_bytes(n) is the size for a slice of n elements, the same on every rank; decode(payload, gradient, add)
/// writes or adds. It may depend on the step that at_gradient() named; before the first at_gradient() it is the largest
/// one, for which memory is made.
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

/// Whether a compressor's run state is made with a communicator: it then runs the collectives itself.
template <class C, class Env, class Comm>
concept has_collective_state = requires {
  typename C::template instance<Env, Comm>;
};

/// A compressor that runs the collectives of a bucket itself, in one or more rounds, and knows the bucket's tensors:
/// one run state for each bucket, made from (description, bucket_form const&, Comm&).
///
///   begin(gradient, scale)  starts the first round for the whole bucket; the gradients carry the factor `scale`, as in
///                           at_scale().
///   test()                  lets the pending collective progress, and starts nothing. True if turn() will return true
///                           without waiting.
///   turn()                  waits for the pending collective; then starts the next round, or writes the sum over all
///                           ranks to the gradient and returns true.
///   commit(), bytes()       as above.
/// Ranks    begin() and turn() are called in the same order on every rank, so only they may start collectives; test()
///          is called whenever a rank has time. After turn() every rank has the same bits in the gradient.
/// Order    begin(), turn() until it is true, commit() if the step was taken. For a skipped step turn() is also called
///          until it is true, but not commit().
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

/// Whether C contains several compressors, one of which is chosen at run time (compression::one_of), all of them valid.
template <class C, class Env, class Comm>
inline constexpr bool chooses_compressor = false;

/// Gradient -> payload -> gradient. The kind of the compressor decides which exchange runs.
template <class C, class Env, class Comm>
concept compressor = summable_compressor<C, Env> || gatherable_compressor<C, Env> ||
    collective_compressor<C, Env, Comm> || chooses_compressor<C, Env, Comm>;

/// Calls description.expect_momentum(of_optimizer), if it exists.
template <class C>
void expect_momentum([[maybe_unused]] C const& description, [[maybe_unused]] double of_optimizer) {
  if constexpr (requires { description.expect_momentum(of_optimizer); }) description.expect_momentum(of_optimizer);
}

/// A compressor that changes nothing; the exchange then skips encode and decode.
template <class C>
concept lossless_identity = requires {
  requires C::identity;
};

/// A run state that is told which gradient comes next.
template <class S>
concept has_at_gradient = requires(S& state, encoded_gradient const& which) {
  state.at_gradient(which);
};

/// A run state of a summable compressor whose payloads have their own number of elements.
template <class S>
concept has_payload_elements = requires(S const& state, std::int64_t n) {
  { state.payload_elements(n) } -> std::convertible_to<std::int64_t>;
};

/// A run state that changes when a step is taken.
template <class S>
concept has_commit = requires(S& state) {
  state.commit();
};

}  // namespace trireme
