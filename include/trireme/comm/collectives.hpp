#pragma once

#include <concepts>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/buffers.hpp"
#include "trireme/comm/command.hpp"
#include "trireme/comm/detail/expectations.hpp"
#include "trireme/comm/detail/kernels.hpp"
#include "trireme/comm/labels.hpp"
#include "trireme/comm/traffic.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

/// A user's reduction that can combine values of T.
template <class Op, class T>
concept own_reduction_for = std::derived_from<Op, reduction::own> && std::is_empty_v<Op> &&
                                std::is_trivially_copyable_v<T> && std::default_initializable<T> && sizeof(T) <= 1024 &&
                            requires(Op op, T const& a, T const& b) {
  { op(a, b) } -> std::convertible_to<T>;
};

/// sum, pairwise, max, min, for floating-point elements also mean; or a user's reduction.
template <class Op, class T>
concept reduction_for = own_reduction_for<Op, T> ||
    (arithmetic_element<T>&& reduction_of<Op> != reduction_kind::none && reduction_of<Op> != reduction_kind::own &&
     (!std::same_as<Op, reduction::mean> || !std::is_integral_v<T>));

namespace detail {
/// The element type in which values of B travel (buffers.hpp).
template <message B>
using sent_t = std::conditional_t<element<value_of_t<B>>, value_of_t<B>, std::byte>;
template <class T>
inline constexpr dtype sent_type = dtype_of<std::conditional_t<element<T>, T, std::byte>>;

template <class World, class B, class Op, collective Kind>
concept can_reduce = writable<B> && reduction_for<Op, value_of_t<B>> &&
    World::template supports<space_of_t<B>>(Kind, dtype_of<sent_t<B>>, reduction_of<Op>);

template <class World, class B, collective Kind>
concept can_move = writable<B> &&
    World::template supports<space_of_t<B>>(Kind, dtype_of<sent_t<B>>, reduction_kind::none);
template <class World, class From, class To, collective Kind>
concept can_move_from = message<From> && can_move<World, To, Kind> && std::same_as<value_of_t<From>, value_of_t<To>> &&
    std::same_as<space_of_t<From>, space_of_t<To>>;
}  // namespace detail

/// The typed interface of a communicator: every collective, blocking and `_async`, with its arguments checked, as a
/// command.
///
/// An engine derives from collectives<itself> and has
///   name, rank(), size()
///   run(command), which returns when this rank's part is done, and start(command), which returns a request
///   supports<Space>(kind, type, op): whether it can run the call; unsupported calls do not compile
///   split(color, key), duplicate()
/// A decorator derives from it too, and passes commands to execute() and submit() of the world below.
///
/// Shapes   see contract/communicator.hpp, which has one concept a collective. All take tensor_views, and buffers
///          (buffers.hpp): vectors, arrays, spans, tensors. Collectives that do not reduce take elements of any
///          trivially copyable type.
/// Bytes    counted by the formulas of comm::bytes_sent, whatever the engine sends.
/// Ranks    every rank calls the same collectives in the same order; exchange is called by the ranks that take part.
/// Errors   config_error before anything is sent if an argument is invalid: uneven slices, a root or a peer out of
///          range, counts that do not fit the views.
template <class Derived>
class collectives {
 public:
  using policy_category = slot::communicator;

  [[nodiscard]] traffic_counters traffic() const noexcept { return traffic_; }

  /// Whose the calls are that are made now (comm/labels.hpp). Ranks compare it with the rest of a call.
  [[nodiscard]] call_labels& labels() noexcept { return labels_; }

  /// Runs a command and counts it. For decorators.
  void execute(command const& it) {
    self().run(it);
    count(it);
  }
  /// Starts a command and counts it. For decorators.
  [[nodiscard]] auto submit(command const& it) {
    auto pending = self().start(it);
    count(it);
    return pending;
  }

  void barrier() { execute(synchronising()); }
  [[nodiscard]] auto barrier_async() { return submit(synchronising()); }

  template <class B, class Op = reduction::sum>
  requires detail::can_reduce<Derived, B, Op, collective::all_reduce>
  void all_reduce(B&& values, Op = {}) {
    execute(reducing<Op>(collective::all_reduce, detail::view_of(std::forward<B>(values))));
  }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce<Derived, B, Op, collective::all_reduce>
  [[nodiscard]] auto all_reduce_async(B&& values, Op = {}) {
    return submit(reducing<Op>(collective::all_reduce, detail::view_of(std::forward<B>(values))));
  }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce<Derived, B, Op, collective::reduce_scatter>
  void reduce_scatter(B&& values, Op = {}) {
    execute(reducing<Op>(collective::reduce_scatter, detail::view_of(std::forward<B>(values))));
  }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce<Derived, B, Op, collective::reduce_scatter>
  [[nodiscard]] auto reduce_scatter_async(B&& values, Op = {}) {
    return submit(reducing<Op>(collective::reduce_scatter, detail::view_of(std::forward<B>(values))));
  }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce<Derived, B, Op, collective::reduce_scatter>
  void reduce_scatter(B&& values, std::span<std::int64_t const> counts, Op = {}) {
    execute(reducing<Op>(collective::reduce_scatter, detail::view_of(std::forward<B>(values)), -1, counts));
  }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce<Derived, B, Op, collective::reduce_scatter>
  [[nodiscard]] auto reduce_scatter_async(B&& values, std::span<std::int64_t const> counts, Op = {}) {
    return submit(reducing<Op>(collective::reduce_scatter, detail::view_of(std::forward<B>(values)), -1, counts));
  }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce<Derived, B, Op, collective::reduce>
  void reduce(B&& values, int root, Op = {}) {
    execute(reducing<Op>(collective::reduce, detail::view_of(std::forward<B>(values)), root));
  }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce<Derived, B, Op, collective::reduce>
  [[nodiscard]] auto reduce_async(B&& values, int root, Op = {}) {
    return submit(reducing<Op>(collective::reduce, detail::view_of(std::forward<B>(values)), root));
  }
  template <class B>
  requires detail::can_move<Derived, B, collective::all_gather>
  void all_gather(B&& values) { execute(in_place(collective::all_gather, detail::view_of(std::forward<B>(values)))); }
  template <class B>
  requires detail::can_move<Derived, B, collective::all_gather>
  [[nodiscard]] auto all_gather_async(B&& values) {
    return submit(in_place(collective::all_gather, detail::view_of(std::forward<B>(values))));
  }
  template <class B>
  requires detail::can_move<Derived, B, collective::all_gather>
  void all_gather(B&& values, std::span<std::int64_t const> counts) {
    execute(in_place(collective::all_gather, detail::view_of(std::forward<B>(values)), -1, counts));
  }
  template <class B>
  requires detail::can_move<Derived, B, collective::all_gather>
  [[nodiscard]] auto all_gather_async(B&& values, std::span<std::int64_t const> counts) {
    return submit(in_place(collective::all_gather, detail::view_of(std::forward<B>(values)), -1, counts));
  }
  template <class B>
  requires detail::can_move<Derived, B, collective::broadcast>
  void broadcast(B&& values, int root) {
    execute(in_place(collective::broadcast, detail::view_of(std::forward<B>(values)), root));
  }
  template <class B>
  requires detail::can_move<Derived, B, collective::broadcast>
  [[nodiscard]] auto broadcast_async(B&& values, int root) {
    return submit(in_place(collective::broadcast, detail::view_of(std::forward<B>(values)), root));
  }
  template <class From, class To>
  requires detail::can_move_from<Derived, From, To, collective::gather>
  void gather(From&& from, To&& to, int root) {
    execute(moving(collective::gather, detail::view_of(std::forward<From>(from)), detail::view_of(std::forward<To>(to)),
                   root));
  }
  template <class From, class To>
  requires detail::can_move_from<Derived, From, To, collective::gather>
  [[nodiscard]] auto gather_async(From&& from, To&& to, int root) {
    return submit(moving(collective::gather, detail::view_of(std::forward<From>(from)),
                         detail::view_of(std::forward<To>(to)), root));
  }
  template <class From, class To>
  requires detail::can_move_from<Derived, From, To, collective::scatter>
  void scatter(From&& from, To&& to, int root) {
    execute(moving(collective::scatter, detail::view_of(std::forward<From>(from)),
                   detail::view_of(std::forward<To>(to)), root));
  }
  template <class From, class To>
  requires detail::can_move_from<Derived, From, To, collective::scatter>
  [[nodiscard]] auto scatter_async(From&& from, To&& to, int root) {
    return submit(moving(collective::scatter, detail::view_of(std::forward<From>(from)),
                         detail::view_of(std::forward<To>(to)), root));
  }
  template <class From, class To>
  requires detail::can_move_from<Derived, From, To, collective::all_to_all>
  void all_to_all(From&& from, To&& to) {
    execute(moving(collective::all_to_all, detail::view_of(std::forward<From>(from)),
                   detail::view_of(std::forward<To>(to))));
  }
  template <class From, class To>
  requires detail::can_move_from<Derived, From, To, collective::all_to_all>
  [[nodiscard]] auto all_to_all_async(From&& from, To&& to) {
    return submit(moving(collective::all_to_all, detail::view_of(std::forward<From>(from)),
                         detail::view_of(std::forward<To>(to))));
  }
  template <class From, class To>
  requires detail::can_move_from<Derived, From, To, collective::all_to_all>
  void all_to_all(From&& from, std::span<std::int64_t const> sent, To&& to, std::span<std::int64_t const> received) {
    execute(ragged_all_to_all(detail::view_of(std::forward<From>(from)), sent, detail::view_of(std::forward<To>(to)),
                              received));
  }
  template <class From, class To>
  requires detail::can_move_from<Derived, From, To, collective::all_to_all>
  [[nodiscard]] auto all_to_all_async(From&& from, std::span<std::int64_t const> sent, To&& to,
                                      std::span<std::int64_t const> received) {
    return submit(ragged_all_to_all(detail::view_of(std::forward<From>(from)), sent,
                                    detail::view_of(std::forward<To>(to)), received));
  }
  /// `transfers` is a contiguous list: a vector, array or span of transfer<Space>.
  template <class Transfers, class Space = typename Transfers::value_type::space>
  requires detail::can_move<Derived, tensor_view<std::byte, Space>, collective::exchange>
  void exchange(Transfers const& transfers) { execute(exchanging<Space>(transfers)); }
  template <class Transfers, class Space = typename Transfers::value_type::space>
  requires detail::can_move<Derived, tensor_view<std::byte, Space>, collective::exchange>
  [[nodiscard]] auto exchange_async(Transfers const& transfers) { return submit(exchanging<Space>(transfers)); }
  template <class Space>
  requires detail::can_move<Derived, tensor_view<std::byte, Space>, collective::exchange>
  void exchange(std::initializer_list<transfer<Space>> transfers) {
    execute(exchanging<Space>(std::span<transfer<Space> const>(transfers.begin(), transfers.size())));
  }

 protected:
  collectives() = default;
  collectives(collectives&&) = default;
  collectives& operator=(collectives&&) = default;
  ~collectives() = default;

  /// The prefix of its errors. A communicator whose name is known only at run time has a `who()` of its own.
  [[nodiscard]] static std::string_view who() {
    static std::string const name = text("trireme::comm::", Derived::name);
    return name;
  }

 private:
  [[nodiscard]] Derived& self() noexcept { return static_cast<Derived&>(*this); }
  [[nodiscard]] Derived const& self() const noexcept { return static_cast<Derived const&>(*this); }

  void count(command const& it) noexcept {
    traffic_.bytes_sent += it.bytes;
    traffic_.messages_sent += it.messages;
    ++traffic_.collectives;
  }

  [[nodiscard]] command synchronising() const noexcept {
    command it;
    it.what.label = labels_.now;
    return it;
  }

  /// The elements of each rank in a ragged call.
  using rank_counts = std::optional<std::span<std::int64_t const>>;

  template <class Op, class T, class Space>
  [[nodiscard]] command reducing(collective kind, tensor_view<T, Space> values, int root = -1,
                                 rank_counts counts = {}) const {
    expect(kind, root, values.size(), counts);
    command it{.what = {kind, detail::sent_type<T>, reduction_of<Op>, false, root, values.size()},
               .from = values.address(),
               .to = values.address(),
               .element_bytes = sizeof(T),
               .elements = &detail::reducing_kernels<T, Space, Op>};
    complete(it, counts);
    return it;
  }
  template <class T, class Space>
  [[nodiscard]] command in_place(collective kind, tensor_view<T, Space> values, int root = -1,
                                 rank_counts counts = {}) const {
    expect(kind, root, values.size(), counts);
    auto const sent = detail::sendable(values);
    if constexpr (!element<T>) {
      thread_local std::vector<std::int64_t> bytes;  // read before the call returns
      bytes.clear();
      if (counts) {
        for (auto const each : *counts) bytes.push_back(each * static_cast<std::int64_t>(sizeof(T)));
        counts = bytes;
      }
    }
    auto it = sending(kind, sent, sent, sent.size(), root);
    complete(it, counts);
    return it;
  }
  template <class From, class T, class Space>
  [[nodiscard]] command moving(collective kind, tensor_view<From, Space> from, tensor_view<T, Space> to,
                               int root = -1) const {
    bool const is_scatter = kind == collective::scatter;
    auto const count = is_scatter ? to.size() : from.size();
    expect(kind, root, count, {});
    detail::expect_sizes(self().who(), {.kind = kind, .root = root, .count = count}, from.size(), to.size(),
                         self().rank(), self().size());
    auto const sent = detail::sendable(from);
    auto const received = detail::sendable(to);
    auto it = sending(kind, sent, received, is_scatter ? received.size() : sent.size(), root);
    complete(it);
    return it;
  }
  template <class From, class T, class Space>
  [[nodiscard]] command ragged_all_to_all(tensor_view<From, Space> from, std::span<std::int64_t const> sent,
                                          tensor_view<T, Space> to, std::span<std::int64_t const> received) const {
    expect(collective::all_to_all, -1, from.size(), sent);
    expect(collective::all_to_all, -1, to.size(), received);
    auto& raw_transfers = detail::transfers_of_this_thread();
    detail::append_transfers(raw_transfers, true, from, sent);
    detail::append_transfers(raw_transfers, false, to, received);
    auto it = sending(collective::all_to_all, detail::sendable(from), detail::sendable(to), 0, -1);
    it.what.shape = 1;
    it.raw_transfers = raw_transfers;
    complete(it);
    return it;
  }
  template <class Space>
  [[nodiscard]] command exchanging(std::span<transfer<Space> const> transfers) const {
    auto& raw_transfers = detail::transfers_of_this_thread();
    for (auto const& each : transfers) {
      detail::expect_peer(self().who(), each.peer, self().size());
      raw_transfers.push_back({each.peer, each.way == transfer<Space>::direction::send, each.type, each.count,
                               static_cast<std::byte*>(each.address)});
    }
    command it{
        .what = {collective::exchange}, .elements = &detail::moving_kernels<Space>, .raw_transfers = raw_transfers};
    complete(it);
    return it;
  }

  template <class From, class T, class Space>
  [[nodiscard]] static command sending(collective kind, tensor_view<From, Space> from, tensor_view<T, Space> to,
                                       std::int64_t count, int root) {
    return {.what = {kind, dtype_of<T>, reduction_kind::none, false, root, count},
            .from = from.address(),
            .to = to.address(),
            .element_bytes = sizeof(T),
            .elements = &detail::moving_kernels<Space>};
  }
  /// Checks slices, counts and roots as far as possible.
  void expect(collective kind, int root, std::int64_t count, rank_counts counts) const {
    if (counts)
      detail::expect_counts(self().who(), kind, *counts, count, self().size());
    else
      detail::expect_right(self().who(), {.kind = kind, .root = root, .count = count}, self().size());
  }
  /// Adds the label, what only a ragged call has, and the bytes that the command counts as sent.
  void complete(command& it, rank_counts counts = {}) const {
    it.what.label = labels_.now;
    if (counts) {
      it.counts = *counts;
      it.what.shape = detail::fingerprint(*counts);
    }
    detail::count_sent(it, self().rank(), self().size());
  }

  traffic_counters traffic_;
  call_labels labels_;
};

}  // namespace trireme::comm
