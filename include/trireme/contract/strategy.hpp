#pragma once

#include <concepts>
#include <cstdint>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// What a strategy axis does with one kind of state.
enum class distribution { replicate, shard };

template <class S>
concept declares_optimizer_state = requires {
  { S::optimizer_state } -> std::convertible_to<distribution>;
};
template <class S>
concept declares_gradients = requires {
  { S::gradients } -> std::convertible_to<distribution>;
};
template <class S>
concept declares_parameters = requires {
  { S::parameters } -> std::convertible_to<distribution>;
};
template <class S>
concept has_bucket_bytes = requires(S const& strategy) {
  { strategy.bucket_bytes } -> std::convertible_to<std::int64_t>;
};

/// One axis of parallelism that splits samples over ranks: how it distributes optimizer state, gradients and
/// parameters, and the size of its buckets.
template <class S>
concept strategy =
    declares_optimizer_state<S> && declares_gradients<S> && declares_parameters<S> && has_bucket_bytes<S>;

/// Whether the ranks of a strategy take steps apart, as in parallel::diloco: they are learners, or their parts.
template <class S>
concept takes_local_steps = requires {
  requires S::local_steps;
};

/// Whether this strategy sums in one fixed tree over the logical micro-batches, whatever the number of ranks.
template <class S>
[[nodiscard]] constexpr bool sums_in_a_tree(S const& strategy) noexcept {
  if constexpr (requires { strategy.reproducible; }) {
    return strategy.reproducible;
  } else {
    return false;
  }
}

}  // namespace trireme
