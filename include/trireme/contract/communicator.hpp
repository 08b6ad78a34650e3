#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include "trireme/core/tensor.hpp"

namespace trireme {

/// What a reduction computes. Ranks are combined in rank order, 0 first, so the result never depends on timing.
namespace reduction {
struct sum {};
struct max {};
struct min {};
}  // namespace reduction

/// Bytes and messages that one rank has sent to others through a communicator since it was made (or split off).
///
/// Every communicator counts by one formula, so that a plan can be exact; n are the bytes of the whole view, p =
/// size():
///   all_reduce                               n - own + own (p - 1), own = bytes of the rank's slice; ~ 2 n (p - 1) / p
///   reduce_scatter, all_gather, all_to_all   n (p - 1) / p
///   broadcast                                n (p - 1) at the root, otherwise 0
///   barrier, split, peers                    0
/// The slices of all_reduce are cut at cache lines: comm::slice_of and comm::bytes_sent (comm/traffic.hpp) compute
/// them.
struct traffic_counters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t collectives = 0;
  friend bool operator==(traffic_counters const&, traffic_counters const&) = default;
};

/// A pending collective. `wait()` returns when it is done or throws comm_error; `test()` gives it a chance to make
/// progress and says whether it is done. The destructor waits, so a buffer can never be left half exchanged.
template <class R>
concept communication_request = std::movable<R> && requires(R& request) {
  { request.test() } -> std::same_as<bool>;
  { request.wait() } -> std::same_as<void>;
};

// The small core. Each requirement is a concept of its own, so that a compiler can name the missing one.
template <class C>
concept has_rank = requires(C const& world) {
  { world.rank() } -> std::same_as<int>;
};
template <class C>
concept has_size = requires(C const& world) {
  { world.size() } -> std::same_as<int>;
};
template <class C>
concept has_split = requires(C& world, int color, int key) {
  { world.split(color, key) } -> std::same_as<C>;
};
template <class C>
concept has_barrier = requires(C& world) {
  world.barrier();
};
template <class C>
concept has_traffic = requires(C const& world) {
  { world.traffic() } -> std::convertible_to<traffic_counters>;
};
template <class C>
concept has_communicator_name = requires {
  { C::name } -> std::convertible_to<std::string_view>;
};

/// A group of ranks that work together. Capabilities (below) are asked for one by one: a strategy requires only what
/// it uses.
///
/// Requires  rank() and size(); split(color, key), collective, gives the group of equal colours ordered by key;
///           barrier(); traffic(); a static `name`.
/// Not asked copying, default construction, thread safety: one caller a rank.
template <class C>
concept communicator =
    has_rank<C> && has_size<C> && has_split<C> && has_barrier<C> && has_traffic<C> && has_communicator_name<C>;

/// Whether requests travel while their rank computes (a communicator says so with a static `progresses`); else they
/// proceed when they are tested or waited for.
template <class C>
concept progresses_alone = requires {
  requires C::progresses;
};

/// The memory space that a communicator's trainer computes in: its `space`, host where it names none.
template <class C>
struct space_of {
  using type = host;
};
template <class C>
requires requires { typename C::space; }
struct space_of<C> {
  using type = typename C::space;
};

/// all_reduce(values, op): in place; afterwards every rank has the same bits. Shapes: values (n), equal n everywhere.
template <class C, class T, class Op = reduction::sum, class Space = host>
concept has_all_reduce = requires(C& world, tensor_view<T, Space> values, Op op) {
  world.all_reduce(values, op);
  { world.all_reduce_async(values, op) } -> communication_request;
};

/// reduce_scatter(values, op): in place on size() equal slices; afterwards slice rank() is reduced, and the other
/// slices are unspecified. Shapes: values (size() * n).
template <class C, class T, class Op = reduction::sum, class Space = host>
concept has_reduce_scatter = requires(C& world, tensor_view<T, Space> values, Op op) {
  world.reduce_scatter(values, op);
  { world.reduce_scatter_async(values, op) } -> communication_request;
};

/// all_gather(values): in place on size() equal slices; every rank gives slice rank() and gets the others.
template <class C, class T, class Space = host>
concept has_all_gather = requires(C& world, tensor_view<T, Space> values) {
  world.all_gather(values);
  { world.all_gather_async(values) } -> communication_request;
};

/// all_to_all(from, to): slice r of `from` goes to rank r; slice r of `to` comes from rank r. Shapes: both (size() *
/// n).
template <class C, class T, class Space = host>
concept has_all_to_all = requires(C& world, tensor_view<T const, Space> from, tensor_view<T, Space> to) {
  world.all_to_all(from, to);
  { world.all_to_all_async(from, to) } -> communication_request;
};

/// broadcast(values, root): every rank gets root's values.
template <class C, class T, class Space = host>
concept has_broadcast = requires(C& world, tensor_view<T, Space> values, int root) {
  world.broadcast(values, root);
  { world.broadcast_async(values, root) } -> communication_request;
};

/// peers(view): collective; the views that all ranks passed, in rank order, each readable and writable from here.
/// Only ranks of one address space have it. Whoever uses such a view puts barriers around it.
template <class C, class T, class Space = host>
concept has_peers = requires(C& world, tensor_view<T, Space> view) {
  { world.peers(view) } -> std::same_as<std::vector<tensor_view<T, Space>>>;
};

}  // namespace trireme
