#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::parallel::detail {

/// What all_gather_async of T gives; nothing where it is not used, for a communicator may lack it.
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

/// How a bucket's gradient becomes the sum over all ranks: begin() after the last backward, then test() or wait().
///
/// After wait() the bucket holds the sum: all of it where gradients are replicated afterwards, this rank's slice where
/// the optimizer's state is sharded. A compressor codes slice by slice, so that both give the same numbers. One
/// transport may serve buckets of several sizes, one after the other, unless its compressor keeps a residual.
template <class Env, class Comm, class Strategy, class Compressor>
class transport {
  using space = typename Env::space;
  using gradient = typename Env::gradient;
  using state = compressor_state<Compressor, Env>;
  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool summable = summable_compressor<Compressor, Env>;
  static constexpr bool identity = lossless_identity<Compressor> && std::is_same_v<gradient, typename Env::reduce>;

  template <bool Summable, class State>
  struct payload_of {
    using type = std::byte;
  };
  template <class State>
  struct payload_of<true, State> {
    using type = typename State::wire;
  };
  using payload_element = typename payload_of<summable, state>::type;
  using request = decltype(std::declval<Comm&>().all_gather_async(tensor_view<std::uint8_t, space>{}));

 public:
  /// Whether sums can be formed in a tree over the ranks.
  static constexpr bool has_tree = identity && [] {
    if constexpr (sharded) {
      return has_reduce_scatter<Comm, gradient, reduction::pairwise, space>;
    } else {
      return has_all_reduce<Comm, gradient, reduction::pairwise, space>;
    }
  }();

  /// @param elements  of the largest bucket.
  transport(Compressor const& compressor, std::int64_t elements, Comm& world)
      : ranks_(world.size()), rank_(world.rank()), compressor_(compressor, elements) {
    if constexpr (identity) return;
    if constexpr (summable) {
      if constexpr (!identity) sent_ = message_tensor<payload_element, space>(world, shape{elements});
    } else {
      auto const bytes = compressor_.payload_bytes(elements / ranks_);
      sent_ = message_tensor<payload_element, space>(world, shape{ranks_ * bytes});
      received_ = message_tensor<payload_element, space>(world, shape{ranks_ * bytes * (sharded ? 1 : ranks_)});
    }
  }

  void begin(Comm& world, tensor_view<gradient, space> bucket, [[maybe_unused]] bool in_a_tree) {
    bucket_ = bucket;
    slice_ = bucket.size() / ranks_;
    if constexpr (has_tree) {
      if (in_a_tree) {
        pending_.emplace(reduce(world, bucket_, reduction::pairwise{}));
        return;
      }
    }
    if constexpr (identity) {
      pending_.emplace(reduce(world, bucket_, reduction::sum{}));
    } else if constexpr (summable) {
      for_each_slice([&](int, auto piece, std::int64_t first) {
        compressor_.encode(piece, sent_.view().flat(first, slice_), first);
      });
      pending_.emplace(reduce(world, sent_.view().flat(0, bucket.size()), reduction::sum{}));
    } else {
      begin_gather(world);
    }
  }

  /// Makes progress without waiting. @returns whether the bucket is done but for decoding.
  [[nodiscard]] bool test() { return !pending_ || pending_->test(); }

  void wait() {
    if (!pending_) return;
    pending_->wait();
    pending_.reset();
    if constexpr (!identity) decode();
  }

  [[nodiscard]] state& compressor() noexcept { return compressor_; }
  /// Bytes of payloads.
  [[nodiscard]] std::size_t bytes() const noexcept { return sent_.view().bytes() + received_.view().bytes(); }

 private:
  template <class F>
  void for_each_slice(F&& f) {
    for (int owner = 0; owner < ranks_; ++owner) f(owner, bucket_.flat(owner * slice_, slice_), owner * slice_);
  }
  template <class T, class Op>
  request reduce(Comm& world, tensor_view<T, space> values, Op op) {
    if constexpr (sharded) {
      return world.reduce_scatter_async(values, op);
    } else {
      return world.all_reduce_async(values, op);
    }
  }
  // Sharded: slice by slice to its owner. Replicated: everybody's payload to everybody.
  void begin_gather(Comm& world) {
    auto const bytes = compressor_.payload_bytes(slice_);
    auto const to_all = sent_.view().flat(0, sharded ? ranks_ * bytes : 0);
    auto const from_all = received_.view().flat(0, ranks_ * bytes * (sharded ? 1 : ranks_));
    auto const own = sharded ? to_all : from_all.flat(rank_ * ranks_ * bytes, ranks_ * bytes);
    for_each_slice([&](int owner, auto piece, std::int64_t first) {
      compressor_.encode(piece, own.flat(owner * bytes, bytes), first);
    });
    if constexpr (sharded) {
      pending_.emplace(world.all_to_all_async(as_bytes<std::uint8_t const>(to_all), as_bytes<std::uint8_t>(from_all)));
    } else {
      pending_.emplace(world.all_gather_async(as_bytes<std::uint8_t>(from_all)));
    }
  }
  void decode() {
    if constexpr (summable) {
      if constexpr (sharded) {
        compressor_.decode(sent_.view().flat(rank_ * slice_, slice_), bucket_.flat(rank_ * slice_, slice_));
      } else {
        compressor_.decode(sent_.view().flat(0, bucket_.size()), bucket_);
      }
    } else {
      auto const bytes = compressor_.payload_bytes(slice_);
      for_each_slice([&](int owner, auto piece, std::int64_t) {
        if (sharded && owner != rank_) return;
        for (int from = 0; from < ranks_; ++from) {  // in rank order: equal bits everywhere
          auto const at = sharded ? from * bytes : (from * ranks_ + owner) * bytes;
          compressor_.decode(received_.view().flat(at, bytes), piece, from > 0);
        }
      });
    }
  }
  template <class Byte, class T>
  static tensor_view<Byte, space> as_bytes(tensor_view<T, space> view) {
    return {reinterpret_cast<Byte*>(view.address()), shape{static_cast<std::int64_t>(view.bytes())}};
  }

  tensor_view<gradient, space> bucket_;
  std::int64_t slice_ = 0;
  int ranks_;
  int rank_;
  state compressor_;
  trireme::tensor<payload_element, space> sent_;
  trireme::tensor<payload_element, space> received_;
  std::optional<request> pending_;
};

}  // namespace trireme::parallel::detail
