#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "trireme/compression/none.hpp"
#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/parallel/change_sums.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/learners.hpp"
#include "trireme/parallel/partition.hpp"
#include "trireme/parallel/strategies.hpp"

namespace trireme::parallel {

/// A slice of one parameter that this rank updates, and its position. The exchange lists all of them once; in each step
/// it sets their gradients.
template <class Env>
struct owned_segment : update_segment<Env> {
  int bucket = 0;
  bucket_plan::tensor_range range{};
  /// The sum of the gradient over the ranks, which settle() may write; none if the update adds the gradient's terms
  /// itself, as in a trainer's step without a norm.
  tensor_view<typename Env::gradient, typename Env::space> sum{};
};

/// What the exchange shows to the run state of a strategy.
///
/// If ranks take steps apart (local_steps) and a learner has several ranks that hold the same part of the model, each
/// of these moves a slice of it: `replicas` are the ranks with the same slice, one of each learner, and the exchange
/// gives all ranks of a learner what end() has written.
template <class Env, class Comm>
struct owned_state {
  Comm& replicas;                              ///< the ranks that hold the same part of the model
  partition const& own;                        ///< the elements that this rank updates, and those that it owns
  std::vector<owned_segment<Env>> const& all;  ///< all slices that this rank updates
  change_sums<Env>* changes = nullptr;         ///< for a strategy that sends changes: their sums over `replicas`
};

/// The functions of a strategy's run state that the exchange calls. The run state lists them, and the list is compared
/// with its members: a misspelt function would silently give another algorithm.
struct strategy_hooks {
  bool begin = false;  ///< begin(samples), when a step begins: how many samples this rank has in it
  /// settle(taken, numbers) -> std::optional<gradient_numbers>, after the vote of each step: the update then reads the
  /// gradients in `all[i].sum`, which settle may write; nothing: no update in this step.
  bool settle = false;
  bool end = false;      ///< end(step) -> bool, when a step is over, taken or not; true: it has written values
  bool start = false;    ///< start(): values were initialised: return to the state before the first step
  bool follow = false;   ///< follow(): values were written from outside (also at initialisation)
  bool state = false;    ///< visit_state(scope, f): see contract/state.hpp
  bool numbers = false;  ///< visit_numbers(f)
};

namespace detail {

struct no_strategy_state {
  static constexpr strategy_hooks has{};
  template <class Policy, class Seen>
  no_strategy_state(Policy const&, Seen const&) noexcept {}
};
template <class Policy, class Env, class Comm>
struct strategy_state {
  using type = no_strategy_state;
};
template <class Policy, class Env, class Comm>
requires requires { typename Policy::template instance<Env, Comm>; }
struct strategy_state<Policy, Env, Comm> {
  using type = typename Policy::template instance<Env, Comm>;
};
template <class Outer, class Inner, class Env, class Comm>
struct strategy_state<learners<Outer, Inner>, Env, Comm> : strategy_state<Outer, Env, Comm> {};
/// The policy that this state is made from.
template <class Policy>
[[nodiscard]] auto const& with_state(Policy const& policy) noexcept {
  if constexpr (is_learners_of_two<Policy>) {
    return policy.outer;
  } else {
    return policy;
  }
}

/// The functions that a strategy's run state lists, and those that it has.
template <class S>
struct strategy_calls {
  static constexpr bool declared = requires {
    { S::has } -> std::convertible_to<strategy_hooks>;
  };
  static constexpr strategy_hooks said = [] {
    if constexpr (declared) return S::has;
    return strategy_hooks{};
  }();
  static constexpr bool begins = requires(S & s) { s.begin(std::int64_t{}); };
  static constexpr bool settles = requires(S & s, gradient_numbers const& n) {
    { s.settle(true, n) } -> std::same_as<std::optional<gradient_numbers>>;
  };
  static constexpr bool ends = requires(S & s) {
    { s.end(std::int64_t{}) } -> std::same_as<bool>;
  };
  static constexpr bool starts = requires(S & s) { s.start(); };
  static constexpr bool follows = requires(S & s) { s.follow(); };
  static constexpr bool has_state = requires(S & s) {
    s.visit_state(state_scope::kept, [](auto const&...) {});
  };
  static constexpr bool has_numbers = requires(S & s) {
    s.visit_numbers([](auto const&, auto&) {});
  };
  static constexpr strategy_hooks there{begins, settles, ends, starts, follows, has_state, has_numbers};
  /// The functions that the exchange calls: none for a wrong list, so that there is only one error.
  static constexpr strategy_hooks made{said.begin && begins,      said.settle&& settles, said.end&& ends,
                                       said.start&& starts,       said.follow&& follows, said.state&& has_state,
                                       said.numbers&& has_numbers};
};

/// One error for each function that is listed and missing, or present and not listed.
template <class S>
struct check_strategy_hooks {
  using calls = strategy_calls<S>;
  static constexpr bool declared = calls::declared;
  static constexpr strategy_hooks said = calls::said, there = calls::there;
  static_assert(declared,
                "trireme::parallel: a strategy's instance must list the functions to be called: "
                "static constexpr parallel::strategy_hooks has{.end = true};");
  static_assert(!declared || said.begin == there.begin,
                "trireme::parallel: a strategy's has.begin needs begin(std::int64_t samples), and the reverse");
  static_assert(!declared || said.settle == there.settle,
                "trireme::parallel: a strategy's has.settle needs settle(bool taken, gradient_numbers const&) -> "
                "std::optional<gradient_numbers>, and the reverse");
  static_assert(!declared || said.end == there.end,
                "trireme::parallel: a strategy's has.end needs end(std::int64_t step) -> bool, and the reverse");
  static_assert(!declared || said.start == there.start,
                "trireme::parallel: a strategy's has.start needs start(), and the reverse");
  static_assert(!declared || said.follow == there.follow,
                "trireme::parallel: a strategy's has.follow needs follow(), and the reverse");
  static_assert(!declared || said.state == there.state,
                "trireme::parallel: a strategy's has.state needs visit_state(state_scope, f), and the reverse");
  static_assert(!declared || said.numbers == there.numbers,
                "trireme::parallel: a strategy's has.numbers needs visit_numbers(f), and the reverse");
};
template <class Policy, class Env, class Comm>
struct check_strategy_instance {
  static_assert(
      !requires { typename Policy::template instance<Env, Comm, no_strategy_state>; },
      "trireme::parallel: a strategy's instance<Env, Comm> is held by the exchange and does not inherit it; "
      "it has no compressor (docs/write_a_policy.md)");
};

/// The shipped strategy with the same placement of state: strategies with one placement share the code of the stores.
template <class S>
consteval auto placement_of() {
  constexpr auto whole = distribution::replicate;
  if constexpr (S::optimizer_state == whole && S::gradients == whole && S::parameters == whole) {
    return std::type_identity<data>{};
  } else if constexpr (S::gradients == whole && S::parameters == whole) {
    return std::type_identity<zero<1>>{};
  } else if constexpr (S::optimizer_state != whole && S::gradients != whole && S::parameters == whole) {
    return std::type_identity<zero<2>>{};
  } else if constexpr (S::optimizer_state != whole && S::gradients != whole && S::parameters != whole) {
    return std::type_identity<zero<3>>{};
  } else {
    return std::type_identity<S>{};
  }
}
template <class S>
using placement_t = typename decltype(placement_of<S>())::type;

/// A version that no values in this process have had before: an engine may outlive the exchange of its parameters.
[[nodiscard]] inline std::uint64_t new_version() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace detail

/// The state of a strategy between steps: its `instance<Env, Comm>`, made from (policy, owned_state), lists the
/// functions that the exchange calls in `static constexpr strategy_hooks has{...}`. For plans it may have period(),
/// settles_after() and count(exchange_memory&) -> void. The exchange holds it and calls it in every step, in any
/// training loop.
template <class Policy, class Env, class Comm>
using strategy_state_t = typename detail::strategy_state<Policy, Env, Comm>::type;

/// Whether each rank's gradient is then the mean over its own samples. Else it is their sum, times the number of ranks,
/// divided by the samples of all ranks, so that the mean of all ranks' steps is that of the whole step.
template <class Policy>
inline constexpr bool averages_alone = requires {
  requires Policy::mean_of_own_samples;
};

/// Whether such a strategy sends changes of parameters in place of gradients, by owned_state::changes: the run's
/// compressor is for them.
template <class Policy>
inline constexpr bool sends_changes = requires {
  requires Policy::sends_changes;
};

/// The momentum that is applied to what a compressor sends: the optimizer's, or that of the outer step if changes are
/// sent.
template <class Policy>
[[nodiscard]] double momentum_of_sums(Policy const& policy, double of_optimizer) {
  if constexpr (!sends_changes<Policy>) {
    return of_optimizer;
  } else if constexpr (requires { policy.outer_momentum; }) {
    return policy.outer_momentum;
  } else {
    return 0;
  }
}

/// What encodes gradients under a strategy: nothing if each rank takes steps on its own, since then the compressor
/// encodes changes.
template <class Strategy, class Compressor>
using gradient_compressor_t = std::conditional_t<takes_local_steps<Strategy>, compression::none, Compressor>;
template <class Strategy, class Compressor>
[[nodiscard]] gradient_compressor_t<Strategy, Compressor> gradient_compressor(
    [[maybe_unused]] Compressor const& given) {
  if constexpr (takes_local_steps<Strategy>) return {};
  if constexpr (!takes_local_steps<Strategy>) return given;
}

}  // namespace trireme::parallel
