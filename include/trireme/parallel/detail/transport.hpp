#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::parallel::detail {

/// The result of all_gather_async of T; empty if not used, because a communicator may lack it.
template <class Comm, class T, class Space, bool Used>
struct gather_request {
  struct type {};
};
template <class Comm, class T, class Space>
struct gather_request<Comm, T, Space, true> {
  using type = decltype(std::declval<Comm&>().all_gather_async(tensor_view<T, Space>{}));
};
template <class Comm, class T, class Space, bool Used>
using gather_request_t = typename gather_request<Comm, T, Space, Used>::type;

/// A summable or gatherable compressor with the interface of a collective one: it encodes slice by slice, and one
/// collective sends the payloads to the other ranks.
///
/// After turn() the bucket holds the sum: all of it if gradients are replicated afterwards, this rank's slice if the
/// optimizer's state is sharded; the numbers are the same. One object may be used for buckets of several sizes, one
/// after the other, unless its compressor has state.
template <class Env, class Comm, class Strategy, class Compressor>
class one_round {
  using space = typename Env::space;
  using gradient = typename Env::gradient;
  using state = compressor_state<Compressor, Env>;
  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool summable = summable_compressor<Compressor, Env>;
  static constexpr bool identity = lossless_identity<Compressor> && std::is_same_v<gradient, typename Env::reduce>;
  static constexpr bool own_sizes = has_payload_elements<state>;

  template <bool Summable, class State>
  struct payload_of {
    using type = std::byte;
  };
  template <class State>
  struct payload_of<true, State> {
    using type = typename State::wire;
  };
  using payload_element = typename payload_of<summable, state>::type;
  using sent_element = std::conditional_t<identity, gradient, payload_element>;
  // The request of the one collective that is used; the communicator may lack the others.
  static auto start_for_type(Comm& world) {
    if constexpr (!summable && sharded) {
      return world.all_to_all_async(tensor_view<std::uint8_t const, space>{}, tensor_view<std::uint8_t, space>{});
    } else if constexpr (!summable) {
      return world.all_gather_async(tensor_view<std::uint8_t, space>{});
    } else if constexpr (sharded) {
      return world.reduce_scatter_async(tensor_view<sent_element, space>{}, reduction::sum{});
    } else {
      return world.all_reduce_async(tensor_view<sent_element, space>{}, reduction::sum{});
    }
  }
  using request = decltype(start_for_type(std::declval<Comm&>()));

 public:
  /// Whether sums can be computed in a tree over the ranks.
  static constexpr bool has_tree = identity && [] {
    if constexpr (sharded) {
      return has_reduce_scatter<Comm, gradient, reduction::pairwise, space>;
    } else {
      return has_all_reduce<Comm, gradient, reduction::pairwise, space>;
    }
  }();

  /// @param form  of the largest bucket.
  one_round(Compressor const& compressor, bucket_form const& form, Comm& world)
      : world_(world),
        ranks_(world.size()),
        rank_(world.rank()),
        compressor_(make_compressor_state<Compressor, Env>(compressor, form)) {
    auto const elements = form.elements;
    if constexpr (identity) return;
    if constexpr (summable) {
      if constexpr (!identity) {
        auto const sent = ranks_ * payload_size(elements / ranks_);
        sent_ = message_tensor<payload_element, space>(world, shape{own_sizes ? sent : elements});
      }
    } else {
      auto const bytes = compressor_.payload_bytes(elements / ranks_);
      sent_ = message_tensor<payload_element, space>(world, shape{ranks_ * bytes});
      received_ = message_tensor<payload_element, space>(world, shape{ranks_ * bytes * (sharded ? 1 : ranks_)});
    }
  }

  /// What the next begin() is for.
  void at_gradient(encoded_gradient const& which) requires(has_at_gradient<state>) { compressor_.at_gradient(which); }
  void begin(tensor_view<gradient, space> bucket, [[maybe_unused]] double scale) {
    begin_with(bucket);
    if constexpr (requires { compressor_.at_scale(scale); }) compressor_.at_scale(scale);
    if constexpr (identity) {
      pending_.emplace(reduce(bucket_, reduction::sum{}));
    } else if constexpr (summable) {
      auto const size = payload_size(slice_);
      for_each_slice([&](int owner, auto slice, std::int64_t first) {
        compressor_.encode(slice, sent_.view().flat(owner * size, size), first);
      });
      pending_.emplace(reduce(sent_.view().flat(0, ranks_ * size), reduction::sum{}));
    } else {
      begin_gather();
    }
  }
  /// The same with sums computed in a tree over the ranks.
  void begin_in_a_tree(tensor_view<gradient, space> bucket) requires(has_tree) {
    begin_with(bucket);
    pending_.emplace(reduce(bucket_, reduction::pairwise{}));
  }
  [[nodiscard]] bool test() { return !pending_ || pending_->test(); }
  bool turn() {
    if (!pending_) return true;
    trireme::order(*pending_);
    pending_.reset();
    if constexpr (!identity) decode();
    return true;
  }
  void commit() {
    if constexpr (has_commit<state>) compressor_.commit();
  }
  template <class F>
  void visit_state(state_scope scope, F&& f) requires requires(state& own) {
    own.visit_state(scope, f);
  }
  { compressor_.visit_state(scope, f); }
  [[nodiscard]] static constexpr bool takes_rounds() noexcept { return false; }
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t own = 0;
    if constexpr (requires { compressor_.bytes(); }) own = compressor_.bytes();
    return own + static_cast<std::int64_t>(sent_.view().bytes() + received_.view().bytes());
  }

 private:
  // The number of elements of a summable payload.
  [[nodiscard]] std::int64_t payload_size(std::int64_t n) const {
    if constexpr (own_sizes) {
      return compressor_.payload_elements(n);
    } else {
      return n;
    }
  }
  void begin_with(tensor_view<gradient, space> bucket) {
    bucket_ = bucket;
    slice_ = bucket.size() / ranks_;
  }
  template <class F>
  void for_each_slice(F&& f) {
    for (int owner = 0; owner < ranks_; ++owner) f(owner, bucket_.flat(owner * slice_, slice_), owner * slice_);
  }
  template <class T, class Op>
  request reduce(tensor_view<T, space> values, Op op) {
    if constexpr (sharded) {
      return world_.reduce_scatter_async(values, op);
    } else {
      return world_.all_reduce_async(values, op);
    }
  }
  // Sharded: each slice to its owner. Replicated: every rank's payload to all ranks.
  void begin_gather() {
    auto const bytes = compressor_.payload_bytes(slice_);
    auto const to_all = sent_.view().flat(0, sharded ? ranks_ * bytes : 0);
    auto const from_all = received_.view().flat(0, ranks_ * bytes * (sharded ? 1 : ranks_));
    auto const own = sharded ? to_all : from_all.flat(rank_ * ranks_ * bytes, ranks_ * bytes);
    for_each_slice([&](int owner, auto slice, std::int64_t first) {
      compressor_.encode(slice, own.flat(owner * bytes, bytes), first);
    });
    if constexpr (sharded) {
      pending_.emplace(world_.all_to_all_async(as_bytes<std::uint8_t const>(to_all), as_bytes<std::uint8_t>(from_all)));
    } else {
      pending_.emplace(world_.all_gather_async(as_bytes<std::uint8_t>(from_all)));
    }
  }
  void decode() {
    if constexpr (summable) {
      if constexpr (sharded || own_sizes) {
        auto const size = payload_size(slice_);
        for_each_slice([&](int owner, auto slice, std::int64_t) {
          if (sharded && owner != rank_) return;
          compressor_.decode(sent_.view().flat(owner * size, size), slice);
        });
      } else {
        compressor_.decode(sent_.view().flat(0, bucket_.size()), bucket_);
      }
    } else {
      auto const bytes = compressor_.payload_bytes(slice_);
      for_each_slice([&](int owner, auto slice, std::int64_t) {
        if (sharded && owner != rank_) return;
        for (int from = 0; from < ranks_; ++from) {  // in rank order: equal bits everywhere
          auto const at = sharded ? from * bytes : (from * ranks_ + owner) * bytes;
          compressor_.decode(received_.view().flat(at, bytes), slice, from > 0);
        }
      });
    }
  }
  template <class Byte, class T>
  static tensor_view<Byte, space> as_bytes(tensor_view<T, space> view) {
    return {reinterpret_cast<Byte*>(view.address()), shape{static_cast<std::int64_t>(view.bytes())}};
  }

  Comm& world_;
  tensor_view<gradient, space> bucket_;
  std::int64_t slice_ = 0;
  int ranks_;
  int rank_;
  state compressor_;
  trireme::tensor<payload_element, space> sent_;
  trireme::tensor<payload_element, space> received_;
  std::optional<request> pending_;
};

template <class Env, class Comm, class Strategy, class Compressor>
struct transport_of {
  using type = one_round<Env, Comm, Strategy, Compressor>;
};
template <class Env, class Comm, class Strategy, class Compressor>
requires has_collective_state<Compressor, Env, Comm>
struct transport_of<Env, Comm, Strategy, Compressor> {
  using type = typename Compressor::template instance<Env, Comm>;
};

/// How a bucket's gradient becomes the sum over all ranks: with the interface of a collective_compressor, whatever the
/// kind of the policy.
template <class Env, class Comm, class Strategy, class Compressor>
using transport = typename transport_of<Env, Comm, Strategy, Compressor>::type;

/// Whether a transport sums in a tree over the ranks.
template <class Transport>
concept sums_in_tree = requires {
  requires Transport::has_tree;
};
/// Whether a transport needs several collectives for a bucket, so that turn() is worth calling before the end.
template <class Transport>
[[nodiscard]] bool takes_rounds(Transport const& wire) {
  if constexpr (requires { wire.takes_rounds(); }) {
    return wire.takes_rounds();
  } else {
    return true;
  }
}
/// Whether a compressor needs each gradient once a step: it has state, or takes rounds.
template <class Compressor, class Env, class Comm>
inline constexpr bool is_given_once = [] {
  if constexpr (has_collective_state<Compressor, Env, Comm>) {
    return true;
  } else {
    return has_commit<compressor_state<Compressor, Env>>;
  }
}();
/// Whether a compressor treats each tensor of a bucket as it is, and not any stretch of it.
template <class Compressor, class Env, class Comm>
inline constexpr bool takes_whole_tensors = has_collective_state<Compressor, Env, Comm>;
/// Whether a transport has state between steps that must be saved.
template <class Transport>
concept keeps_state = requires(Transport& wire) {
  wire.visit_state(state_scope::kept, [](std::string const&, state_location const&, auto const&) {});
};

}  // namespace trireme::parallel::detail
