#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/core/tensor.hpp"

namespace trireme {

/// The operation of a reduction. Ranks are combined in rank order, 0 first (except for pairwise), so the result never
/// depends on timing.
namespace reduction {
struct sum {};
struct pairwise {};  ///< the sum, formed in a fixed binary tree over the ranks (core/summation_tree.hpp)
/// The largest number. NaN if any rank has NaN, and -0 is less than +0: the same bits on every engine except NCCL's own
/// reductions (core/extremes.hpp).
struct max {};
struct min {};   ///< the smallest number; NaN if any rank has NaN, and -0 is less than +0
struct mean {};  ///< the sum, divided by the number of ranks before it is rounded; floating-point elements only
/// Base of a user's reduction: an empty class with `T operator()(T const& a, T const& b) const`, which must be
/// associative, for trivially copyable T of at most 1 KiB in host memory. Ranks are combined in rank order, so it need
/// not be commutative.
struct own {};
}  // namespace reduction

/// Bytes and messages that one rank has sent to others through a communicator since it was made (or split off).
///
/// Every communicator counts by one formula, so that plans are exact. n are the bytes of the whole view, p = size():
///   all_reduce                               n - own + own (p - 1), own = bytes of the rank's slice; ~ 2 n (p - 1) / p
///   reduce_scatter, all_gather, all_to_all   n (p - 1) / p; ragged all_gather own (p - 1), the others n - own
///   broadcast                                n (p - 1) at the root, otherwise 0
///   scatter                                  n (p - 1) / p at the root, otherwise 0
///   reduce, gather                           n, but 0 at the root
///   exchange                                 the bytes that it sends to other ranks
///   barrier, split, duplicate, peers         0
/// The slices of all_reduce are cut at cache lines: comm::slice_of and comm::bytes_sent (comm/traffic.hpp) compute
/// them.
struct traffic_counters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t collectives = 0;
  friend bool operator==(traffic_counters const&, traffic_counters const&) = default;
};

/// A pending collective. `wait()` returns when it is done, and the host may use the result, or throws comm_error;
/// `test()` lets it progress and returns whether it is done. The destructor waits, or orders where there is order()
/// (below), so no buffer is left half exchanged.
template <class R>
concept communication_request = std::movable<R> && requires(R& request) {
  { request.test() } -> std::same_as<bool>;
  { request.wait() } -> std::same_as<void>;
};

/// A request of a device that works through queues may have `order()`, too: what this thread queues afterwards sees the
/// result and may reuse the memory, while the host goes on at once and must not read the result yet. The request is
/// finished with. If the collective fails or is late, the next call that waits on the host throws comm_error.
template <class R>
concept has_order = communication_request<R> && requires(R& request) {
  { request.order() } -> std::same_as<void>;
};
/// order() of a request that has it, otherwise wait(). Strategies and engines call this wherever the host itself does
/// not read the result.
template <communication_request R>
void order(R& request) {
  if constexpr (has_order<R>)
    request.order();
  else
    request.wait();
}

// The small core. Each requirement is a concept of its own, so that the compiler can name the missing one.
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
concept has_duplicate = requires(C& world) {
  { world.duplicate() } -> std::same_as<C>;
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

/// A group of ranks that work together. Capabilities (below) are required one by one: a strategy requires only what it
/// uses.
///
/// Requires  rank() and size(); split(color, key), collective, returns the group of equal colours ordered by key;
///           duplicate(), collective, returns a copy with the same ranks and an order of calls of its own: calls on the
///           copy may interleave differently with the original's on each rank (unless a static `one_order` is true);
///           barrier(); traffic(); a static `name`.
/// Not required  copying, default construction, thread safety: one caller a rank.
template <class C>
concept communicator = has_rank<C> && has_size<C> && has_split<C> && has_duplicate<C> && has_barrier<C> &&
    has_traffic<C> && has_communicator_name<C>;

/// Whether requests progress while their rank computes (a communicator sets a static `progresses`); otherwise they
/// progress when they are tested or waited for.
template <class C>
concept progresses_alone = requires {
  requires C::progresses;
};
/// The same of one world: where it depends on how the world was made, its type has `progresses_here()`, too.
template <class C>
[[nodiscard]] constexpr bool requests_travel_alone(C const& world) noexcept {
  if constexpr (requires { world.progresses_here(); })
    return world.progresses_here();
  else
    return progresses_alone<C>;
}

/// The memory space in which a communicator's trainer computes: its `space`, or host if it has none.
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

/// reduce_scatter(values, counts, op): the ragged form. Slice r has counts[r] elements and begins after the slices of
/// lower ranks; every rank passes the same counts. Shapes: values (sum of counts).
template <class C, class T, class Op = reduction::sum, class Space = host>
concept has_ragged_reduce_scatter = requires(C& world, tensor_view<T, Space> values,
                                             std::span<std::int64_t const> counts, Op op) {
  world.reduce_scatter(values, counts, op);
  { world.reduce_scatter_async(values, counts, op) } -> communication_request;
};

/// all_gather(values): in place on size() equal slices; every rank provides slice rank() and receives the others.
template <class C, class T, class Space = host>
concept has_all_gather = requires(C& world, tensor_view<T, Space> values) {
  world.all_gather(values);
  { world.all_gather_async(values) } -> communication_request;
};

/// all_gather(values, counts): the ragged form. Rank r provides counts[r] elements, which begin after those of lower
/// ranks; every rank passes the same counts. Shapes: values (sum of counts).
template <class C, class T, class Space = host>
concept has_ragged_all_gather = requires(C& world, tensor_view<T, Space> values, std::span<std::int64_t const> counts) {
  world.all_gather(values, counts);
  { world.all_gather_async(values, counts) } -> communication_request;
};

/// reduce(values, root, op): in place at the root; the other ranks' values stay as they are. Shapes: values (n).
template <class C, class T, class Op = reduction::sum, class Space = host>
concept has_reduce = requires(C& world, tensor_view<T, Space> values, int root, Op op) {
  world.reduce(values, root, op);
  { world.reduce_async(values, root, op) } -> communication_request;
};

/// gather(from, to, root): slice r of the root's `to` comes from rank r. Shapes: from (n); to (size() * n) at the root,
/// anything elsewhere.
template <class C, class T, class Space = host>
concept has_gather = requires(C& world, tensor_view<T const, Space> from, tensor_view<T, Space> to, int root) {
  world.gather(from, to, root);
  { world.gather_async(from, to, root) } -> communication_request;
};

/// scatter(from, to, root): slice r of the root's `from` goes to rank r. Shapes: from (size() * n) at the root,
/// anything elsewhere; to (n).
template <class C, class T, class Space = host>
concept has_scatter = requires(C& world, tensor_view<T const, Space> from, tensor_view<T, Space> to, int root) {
  world.scatter(from, to, root);
  { world.scatter_async(from, to, root) } -> communication_request;
};

/// all_to_all(from, to): slice r of `from` goes to rank r; slice r of `to` comes from rank r. Shapes: both (size() *
/// n).
template <class C, class T, class Space = host>
concept has_all_to_all = requires(C& world, tensor_view<T const, Space> from, tensor_view<T, Space> to) {
  world.all_to_all(from, to);
  { world.all_to_all_async(from, to) } -> communication_request;
};

/// all_to_all(from, sent, to, received): the ragged form. sent[r] elements go to rank r and received[r] come from it,
/// in rank order without gaps; sent[r] here is received[rank()] there. Shapes: from (sum of sent), to (sum of
/// received).
template <class C, class T, class Space = host>
concept has_ragged_all_to_all = requires(C& world, tensor_view<T const, Space> from, tensor_view<T, Space> to,
                                         std::span<std::int64_t const> counts) {
  world.all_to_all(from, counts, to, counts);
  { world.all_to_all_async(from, counts, to, counts) } -> communication_request;
};

/// One message of an exchange: `values` go to rank `peer`, or come from it. Made by send_to and receive_from.
///
/// The elements are given by address and type, so that one exchange may carry several types.
template <class Space = host>
struct transfer {
  using space = Space;
  enum class direction : std::uint8_t { send, receive };
  direction way = direction::send;
  dtype type = dtype::u8;
  int peer = 0;
  std::int64_t count = 0;
  void* address = nullptr;
};
template <class T, class Space>
[[nodiscard]] constexpr transfer<Space> send_to(int peer, tensor_view<T, Space> values) noexcept {
  return {transfer<Space>::direction::send, dtype_of<std::remove_const_t<T>>, peer, values.size(),
          const_cast<std::remove_const_t<T>*>(values.address())};
}
template <class T, class Space>
[[nodiscard]] constexpr transfer<Space> receive_from(int peer, tensor_view<T, Space> values) noexcept {
  return {transfer<Space>::direction::receive, dtype_of<T>, peer, values.size(), values.address()};
}

/// exchange(transfers): a group of sends and receives that progress together, in any order, so that they cannot block
/// each other. Only the ranks that take part call it. The k-th send from a rank to another is matched with the k-th
/// receive there, over all exchanges of a communicator; both must have the same type and count.
template <class C, class Space = host>
concept has_exchange = requires(C& world, std::span<transfer<Space> const> transfers) {
  world.exchange(transfers);
  { world.exchange_async(transfers) } -> communication_request;
};

/// One direction between two ranks: the messages of exchanges from rank `from` to rank `to`.
struct route {
  int from = 0;
  int to = 0;
  friend constexpr bool operator==(route const&, route const&) = default;
};

/// open_routes(routes): collective, with the same list on all ranks. From then on messages along one of these routes
/// wait only for earlier ones on the same route.
///
/// Only a communicator whose exchanges may wait for earlier ones of their rank has it (comm::nccl): there a receive
/// that is started before the send without which it never ends needs a route. Routes may cost memory.
template <class C>
concept has_routes = requires(C& world, std::span<route const> routes) {
  world.open_routes(routes);
};

/// broadcast(values, root): every rank gets the root's values.
template <class C, class T, class Space = host>
concept has_broadcast = requires(C& world, tensor_view<T, Space> values, int root) {
  world.broadcast(values, root);
  { world.broadcast_async(values, root) } -> communication_request;
};

/// allocate<T>(extents): memory that the other ranks can access without a copy, for buckets and other large messages.
template <class C, class T, class Space = host>
concept has_allocate = requires(C& world, shape extents) {
  { world.template allocate<T>(extents) } -> std::same_as<tensor<T, Space>>;
};

/// A tensor for the messages of `world`: in the communicator's memory, if it provides any.
template <class T, class Space, class C>
[[nodiscard]] tensor<T, Space> message_tensor(C& world, shape extents) {
  if constexpr (has_allocate<C, T, Space>)
    return world.template allocate<T>(extents);
  else
    return tensor<T, Space>(extents);
}

/// peers(view): collective; the views that all ranks passed, in rank order, each readable and writable from this rank.
/// Only for ranks in one address space. Put barriers around each use of such a view.
template <class C, class T, class Space = host>
concept has_peers = requires(C& world, tensor_view<T, Space> view) {
  { world.peers(view) } -> std::same_as<std::vector<tensor_view<T, Space>>>;
};

}  // namespace trireme
