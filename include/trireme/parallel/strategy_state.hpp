#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/parallel/partition.hpp"
#include "trireme/parallel/strategies.hpp"

namespace trireme::parallel {

/// A stretch of one parameter that this rank updates, and where it lies.
template <class Env>
struct owned_segment {
  int bucket = 0;
  layout::piece piece;
  parameter_info const* info = nullptr;
  tensor_view<typename Env::master, typename Env::space> value;    ///< what an update writes
  tensor_view<typename Env::gradient, typename Env::space> sum{};  ///< within settle(): of the gradients of this step
};

/// What the run state of a strategy sees of the exchange that calls it.
template <class Env, class Comm>
struct owned_state {
  Comm& replicas;                              ///< the ranks that hold the same part of the model
  partition const& own;                        ///< which elements this rank updates, and answers for
  std::vector<owned_segment<Env>> const& all;  ///< all that this rank updates
};

/// Which functions of a strategy's run state the exchange calls. The run state says so itself, and is compared with
/// what it has: a function whose name is misspelt would be another algorithm.
struct strategy_hooks {
  /// settle(taken, numbers) -> std::optional<gradient_numbers>, after the vote of each step: which gradients the update
  /// reads, those in `all[i].sum`, which it may write; nothing: no update in this step.
  bool settle = false;
  bool end = false;      ///< end(step) -> bool, when a step is over, taken or not; true: it has written values
  bool start = false;    ///< start(): values were made anew: as before the first step
  bool follow = false;   ///< follow(): values were written from outside (when they are first made, too)
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

/// What a strategy's run state says of its functions, and which of them there are.
template <class S>
struct strategy_calls {
  static constexpr bool says = requires {
    { S::has } -> std::convertible_to<strategy_hooks>;
  };
  static constexpr strategy_hooks said = [] {
    if constexpr (says) return S::has;
    return strategy_hooks{};
  }();
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
  static constexpr strategy_hooks there{settles, ends, starts, follows, has_state, has_numbers};
  /// What the exchange calls: of a slip one sentence is enough.
  static constexpr strategy_hooks made = [] {
    auto calls = said;
    if (!settles) calls.settle = false;
    if (!ends) calls.end = false;
    if (!starts) calls.start = false;
    if (!follows) calls.follow = false;
    if (!has_state) calls.state = false;
    if (!has_numbers) calls.numbers = false;
    return calls;
  }();
};

/// One sentence for each function that is said and not there, or there and not said.
template <class S>
struct check_strategy_hooks {
  using calls = strategy_calls<S>;
  static constexpr bool says = calls::says;
  static constexpr strategy_hooks said = calls::said, there = calls::there;
  static_assert(says,
                "trireme::parallel: a strategy's instance says which of its functions are to be called: static "
                "constexpr parallel::strategy_hooks has{.end = true};");
  static_assert(!says || said.settle == there.settle,
                "trireme::parallel: a strategy's has.settle and its settle(bool taken, gradient_numbers const&) -> "
                "std::optional<gradient_numbers> go together");
  static_assert(!says || said.end == there.end,
                "trireme::parallel: a strategy's has.end and its end(std::int64_t step) -> bool go together");
  static_assert(!says || said.start == there.start,
                "trireme::parallel: a strategy's has.start and its start() go together");
  static_assert(!says || said.follow == there.follow,
                "trireme::parallel: a strategy's has.follow and its follow() go together");
  static_assert(!says || said.state == there.state,
                "trireme::parallel: a strategy's has.state and its visit_state(state_scope, f) go together");
  static_assert(!says || said.numbers == there.numbers,
                "trireme::parallel: a strategy's has.numbers and its visit_numbers(f) go together");
};
template <class Policy, class Env, class Comm>
struct check_strategy_instance {
  static_assert(
      !requires { typename Policy::template instance<Env, Comm, no_strategy_state>; },
      "trireme::parallel: a strategy's instance<Env, Comm> is held by the exchange and does not inherit it; it "
      "has no compressor (docs/write_a_policy.md)");
};

/// Where a strategy puts state, as one of the shipped strategies: those that put it alike share the code of the stores.
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

/// A number that no values in this process have had: an engine may outlive the exchange of its parameters.
[[nodiscard]] inline std::uint64_t new_version() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

/// The ranks that gradients are summed over: all replicas, or this rank alone.
template <class Comm, bool Alone>
struct summed_ranks {
  explicit summed_ranks(Comm& replicas) noexcept : ranks(replicas) {}
  Comm& ranks;
};
template <class Comm>
struct summed_ranks<Comm, true> {
  explicit summed_ranks(Comm& replicas) : ranks(replicas.split(replicas.rank(), 0)) {}
  Comm ranks;
};

}  // namespace detail

/// What a strategy keeps from step to step: its `instance<Env, Comm>`, made of (policy, owned_state), which says by
/// `static constexpr strategy_hooks has{...}` what the exchange calls. For plans it may have period(), settles_after()
/// and count(exchange_memory&) -> void. The exchange holds it and calls it in every step, whoever drives the loop.
template <class Policy, class Env, class Comm>
using strategy_state_t = typename detail::strategy_state<Policy, Env, Comm>::type;

/// Whether each rank takes steps alone: gradients are not summed, and ranks have values of their own between steps.
template <class Policy>
inline constexpr bool steps_alone = requires {
  requires Policy::local_steps;
};

}  // namespace trireme::parallel
