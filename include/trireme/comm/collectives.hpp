#pragma once

#include <concepts>
#include <initializer_list>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/comm/buffers.hpp"
#include "trireme/comm/command.hpp"
#include "trireme/comm/detail/expectations.hpp"
#include "trireme/comm/detail/kernels.hpp"
#include "trireme/comm/traffic.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

/// sum, pairwise, max, min, and for floating-point elements mean.
template <class Op, class T>
concept reduction_for = arithmetic_element<T> && reduction_of<Op>
!= reduction_kind::none && (!std::same_as<Op, reduction::mean> || !std::is_integral_v<T>);

namespace detail {
template <class World, class T, class Space, class Op, collective Kind>
concept can_reduce = reduction_for<Op, T> && World::template supports<Space>(Kind, dtype_of<T>, reduction_of<Op>);
template <class World, class T, class Space, collective Kind>
concept can_move = element<T> && World::template supports<Space>(Kind, dtype_of<T>, reduction_kind::none);
template <class World, class From, class T, class Space, collective Kind>
concept can_move_from = std::same_as<std::remove_const_t<From>, T> && can_move<World, T, Space, Kind>;

// The same for buffers (buffers.hpp).
template <class B>
using space_of_t = typename view_of_t<B>::space;
template <class World, class B, class Op, collective Kind>
concept can_reduce_buffer = message_buffer<B> && can_reduce<World, element_of_t<B>, space_of_t<B>, Op, Kind>;
template <class World, class B, collective Kind>
concept can_move_buffer = writable_buffer<B> && can_move<World, std::byte, space_of_t<B>, Kind>;
template <class T, class Space>
[[nodiscard]] constexpr auto view_of(tensor_view<T, Space> values) {
  return values;
}
/// A view and a buffer, or two buffers, whose elements can be written to `To`; two views have calls of their own.
template <class From, class To>
concept some_buffers = (message_buffer<From> || message_buffer<To>)&&requires(From from, To to) {
  detail::view_of(static_cast<From&&>(from));
  detail::view_of(static_cast<To&&>(to));
  requires !std::is_const_v<std::remove_reference_t<decltype(*detail::view_of(static_cast<To&&>(to)).address())>>;
};
}  // namespace detail

/// The typed face of a communicator: every collective, blocking and `_async`, checked and turned into a command.
///
/// An engine derives from collectives<itself> and has
///   name, rank(), size()
///   run(command), which returns when this rank's part is done, and start(command), which returns a request
///   supports<Space>(kind, type, op): whether it can; a call that it cannot do does not compile
///   split(color, key), duplicate()
/// A decorator derives from it too, and passes on commands to the execute() and submit() of the world below.
///
/// Shapes   see contract/communicator.hpp, which has one concept a collective. Besides tensor_views all take buffers
///          (buffers.hpp): vectors, arrays, spans, tensors; all_gather, broadcast and exchange take them of any
///          trivially copyable type.
/// Bytes    counted as comm::bytes_sent says, whatever the engine does.
/// Ranks    every rank calls the same collectives in the same order; exchange is called by those that take part.
/// Errors   config_error before anything is sent if an argument cannot be right: uneven slices, a root or a peer out of
///          range, counts that do not fit the views.
template <class Derived>
class collectives {
 public:
  using policy_category = slot::communicator;

  [[nodiscard]] traffic_counters traffic() const noexcept { return traffic_; }

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

  void barrier() { execute(command{}); }
  [[nodiscard]] auto barrier_async() { return submit(command{}); }

  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::all_reduce>
  void all_reduce(tensor_view<T, Space> values, Op = {}) {
    execute(reducing<T, Space, Op>(collective::all_reduce, values));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::all_reduce>
  [[nodiscard]] auto all_reduce_async(tensor_view<T, Space> values, Op = {}) {
    return submit(reducing<T, Space, Op>(collective::all_reduce, values));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::reduce_scatter>
  void reduce_scatter(tensor_view<T, Space> values, Op = {}) {
    execute(reducing<T, Space, Op>(collective::reduce_scatter, values));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::reduce_scatter>
  [[nodiscard]] auto reduce_scatter_async(tensor_view<T, Space> values, Op = {}) {
    return submit(reducing<T, Space, Op>(collective::reduce_scatter, values));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::reduce>
  void reduce(tensor_view<T, Space> values, int root, Op = {}) {
    execute(reducing<T, Space, Op>(collective::reduce, values, root));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::reduce>
  [[nodiscard]] auto reduce_async(tensor_view<T, Space> values, int root, Op = {}) {
    return submit(reducing<T, Space, Op>(collective::reduce, values, root));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::all_gather>
  void all_gather(tensor_view<T, Space> values) {
    execute(moving<T, Space>(collective::all_gather, values, values, values.size()));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::all_gather>
  [[nodiscard]] auto all_gather_async(tensor_view<T, Space> values) {
    return submit(moving<T, Space>(collective::all_gather, values, values, values.size()));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::all_gather>
  void all_gather(tensor_view<T, Space> values, std::span<std::int64_t const> counts) {
    execute(ragged_all_gather<T, Space>(values, counts));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::all_gather>
  [[nodiscard]] auto all_gather_async(tensor_view<T, Space> values, std::span<std::int64_t const> counts) {
    return submit(ragged_all_gather<T, Space>(values, counts));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::broadcast>
  void broadcast(tensor_view<T, Space> values, int root) {
    execute(moving<T, Space>(collective::broadcast, values, values, values.size(), root));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::broadcast>
  [[nodiscard]] auto broadcast_async(tensor_view<T, Space> values, int root) {
    return submit(moving<T, Space>(collective::broadcast, values, values, values.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::gather>
  void gather(tensor_view<From, Space> from, tensor_view<T, Space> to, int root) {
    execute(moving<T, Space>(collective::gather, from, to, from.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::gather>
  [[nodiscard]] auto gather_async(tensor_view<From, Space> from, tensor_view<T, Space> to, int root) {
    return submit(moving<T, Space>(collective::gather, from, to, from.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::scatter>
  void scatter(tensor_view<From, Space> from, tensor_view<T, Space> to, int root) {
    execute(moving<T, Space>(collective::scatter, from, to, to.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::scatter>
  [[nodiscard]] auto scatter_async(tensor_view<From, Space> from, tensor_view<T, Space> to, int root) {
    return submit(moving<T, Space>(collective::scatter, from, to, to.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::all_to_all>
  void all_to_all(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    execute(moving<T, Space>(collective::all_to_all, from, to, from.size()));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::all_to_all>
  [[nodiscard]] auto all_to_all_async(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    return submit(moving<T, Space>(collective::all_to_all, from, to, from.size()));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::all_to_all>
  void all_to_all(tensor_view<From, Space> from, std::span<std::int64_t const> sent, tensor_view<T, Space> to,
                  std::span<std::int64_t const> received) {
    execute(ragged_all_to_all<T, Space>(from, sent, to, received));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::all_to_all>
  [[nodiscard]] auto all_to_all_async(tensor_view<From, Space> from, std::span<std::int64_t const> sent,
                                      tensor_view<T, Space> to, std::span<std::int64_t const> received) {
    return submit(ragged_all_to_all<T, Space>(from, sent, to, received));
  }
  /// `transfers` is a list in one piece: a vector, array or span of transfer<Space>.
  template <class Transfers, class Space = typename Transfers::value_type::space>
  requires detail::can_move<Derived, std::byte, Space, collective::exchange>
  void exchange(Transfers const& transfers) { execute(exchanging<Space>(transfers)); }
  template <class Transfers, class Space = typename Transfers::value_type::space>
  requires detail::can_move<Derived, std::byte, Space, collective::exchange>
  [[nodiscard]] auto exchange_async(Transfers const& transfers) { return submit(exchanging<Space>(transfers)); }
  template <class Space>
  requires detail::can_move<Derived, std::byte, Space, collective::exchange>
  void exchange(std::initializer_list<transfer<Space>> transfers) {
    execute(exchanging<Space>(std::span<transfer<Space> const>(transfers.begin(), transfers.size())));
  }

  // --- the same for buffers

  template <class B, class Op = reduction::sum>
  requires detail::can_reduce_buffer<Derived, B, Op, collective::all_reduce>
  void all_reduce(B&& values, Op op = {}) { all_reduce(detail::view_of(std::forward<B>(values)), op); }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce_buffer<Derived, B, Op, collective::all_reduce>
  [[nodiscard]] auto all_reduce_async(B&& values, Op op = {}) {
    return all_reduce_async(detail::view_of(std::forward<B>(values)), op);
  }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce_buffer<Derived, B, Op, collective::reduce_scatter>
  void reduce_scatter(B&& values, Op op = {}) { reduce_scatter(detail::view_of(std::forward<B>(values)), op); }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce_buffer<Derived, B, Op, collective::reduce_scatter>
  [[nodiscard]] auto reduce_scatter_async(B&& values, Op op = {}) {
    return reduce_scatter_async(detail::view_of(std::forward<B>(values)), op);
  }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce_buffer<Derived, B, Op, collective::reduce>
  void reduce(B&& values, int root, Op op = {}) { reduce(detail::view_of(std::forward<B>(values)), root, op); }
  template <class B, class Op = reduction::sum>
  requires detail::can_reduce_buffer<Derived, B, Op, collective::reduce>
  [[nodiscard]] auto reduce_async(B&& values, int root, Op op = {}) {
    return reduce_async(detail::view_of(std::forward<B>(values)), root, op);
  }
  template <class B>
  requires detail::can_move_buffer<Derived, B, collective::all_gather>
  void all_gather(B&& values) {
    if constexpr (detail::is_sendable<detail::value_of_t<B>>())
      all_gather(slices_of(detail::view_of(std::forward<B>(values))));
  }
  template <class B>
  requires detail::can_move_buffer<Derived, B, collective::all_gather>
  [[nodiscard]] auto all_gather_async(B&& values) {
    if constexpr (detail::is_sendable<detail::value_of_t<B>>())
      return all_gather_async(slices_of(detail::view_of(std::forward<B>(values))));
  }
  template <class B>
  requires detail::can_move_buffer<Derived, B, collective::all_gather>
  void all_gather(B&& values, std::span<std::int64_t const> counts) {
    if constexpr (detail::is_sendable<detail::value_of_t<B>>()) {
      auto const view = detail::view_of(std::forward<B>(values));
      all_gather(detail::sendable(view), counts_of(view, counts));
    }
  }
  template <class B>
  requires detail::can_move_buffer<Derived, B, collective::all_gather>
  [[nodiscard]] auto all_gather_async(B&& values, std::span<std::int64_t const> counts) {
    if constexpr (detail::is_sendable<detail::value_of_t<B>>()) {
      auto const view = detail::view_of(std::forward<B>(values));
      return all_gather_async(detail::sendable(view), counts_of(view, counts));
    }
  }
  template <class B>
  requires detail::can_move_buffer<Derived, B, collective::broadcast>
  void broadcast(B&& values, int root) {
    if constexpr (detail::is_sendable<detail::value_of_t<B>>())
      broadcast(detail::sendable(detail::view_of(std::forward<B>(values))), root);
  }
  template <class B>
  requires detail::can_move_buffer<Derived, B, collective::broadcast>
  [[nodiscard]] auto broadcast_async(B&& values, int root) {
    if constexpr (detail::is_sendable<detail::value_of_t<B>>())
      return broadcast_async(detail::sendable(detail::view_of(std::forward<B>(values))), root);
  }
  template <class From, class To>
  requires detail::some_buffers<From&&, To&&>
  void gather(From&& from, To&& to, int root) {
    gather(detail::view_of(std::forward<From>(from)), detail::view_of(std::forward<To>(to)), root);
  }
  template <class From, class To>
  requires detail::some_buffers<From&&, To&&>
  [[nodiscard]] auto gather_async(From&& from, To&& to, int root) {
    return gather_async(detail::view_of(std::forward<From>(from)), detail::view_of(std::forward<To>(to)), root);
  }
  template <class From, class To>
  requires detail::some_buffers<From&&, To&&>
  void scatter(From&& from, To&& to, int root) {
    scatter(detail::view_of(std::forward<From>(from)), detail::view_of(std::forward<To>(to)), root);
  }
  template <class From, class To>
  requires detail::some_buffers<From&&, To&&>
  [[nodiscard]] auto scatter_async(From&& from, To&& to, int root) {
    return scatter_async(detail::view_of(std::forward<From>(from)), detail::view_of(std::forward<To>(to)), root);
  }
  template <class From, class To>
  requires detail::some_buffers<From&&, To&&>
  void all_to_all(From&& from, To&& to) {
    all_to_all(detail::view_of(std::forward<From>(from)), detail::view_of(std::forward<To>(to)));
  }
  template <class From, class To>
  requires detail::some_buffers<From&&, To&&>
  [[nodiscard]] auto all_to_all_async(From&& from, To&& to) {
    return all_to_all_async(detail::view_of(std::forward<From>(from)), detail::view_of(std::forward<To>(to)));
  }
  template <class From, class To>
  requires detail::some_buffers<From&&, To&&>
  void all_to_all(From&& from, std::span<std::int64_t const> sent, To&& to, std::span<std::int64_t const> received) {
    all_to_all(detail::view_of(std::forward<From>(from)), sent, detail::view_of(std::forward<To>(to)), received);
  }
  template <class From, class To>
  requires detail::some_buffers<From&&, To&&>
  [[nodiscard]] auto all_to_all_async(From&& from, std::span<std::int64_t const> sent, To&& to,
                                      std::span<std::int64_t const> received) {
    return all_to_all_async(detail::view_of(std::forward<From>(from)), sent, detail::view_of(std::forward<To>(to)),
                            received);
  }

 protected:
  collectives() = default;
  collectives(collectives&&) = default;
  collectives& operator=(collectives&&) = default;
  ~collectives() = default;

  static inline std::string const who{text("trireme::comm::", Derived::name)};

 private:
  [[nodiscard]] Derived& self() noexcept { return static_cast<Derived&>(*this); }
  [[nodiscard]] Derived const& self() const noexcept { return static_cast<Derived const&>(*this); }

  void count(command const& it) noexcept {
    traffic_.bytes_sent += it.bytes;
    traffic_.messages_sent += it.messages;
    ++traffic_.collectives;
  }

  /// The view as it travels: of elements, or of bytes. Checked before, so that a slice is a number of whole elements.
  template <class T, class Space>
  [[nodiscard]] auto slices_of(tensor_view<T, Space> values) const {
    detail::expect_right(who, {.kind = collective::all_gather, .count = values.size()}, self().size());
    return detail::sendable(values);
  }
  /// The counts as the view travels: of elements, or of bytes.
  template <class T, class Space>
  [[nodiscard]] std::span<std::int64_t const> counts_of(tensor_view<T, Space> values,
                                                        std::span<std::int64_t const> counts) const {
    if constexpr (element<std::remove_const_t<T>>) {
      return counts;
    } else {
      detail::expect_counts(who, collective::all_gather, counts, values.size(), self().size());
      thread_local std::vector<std::int64_t> bytes;  // read before the call returns
      bytes.clear();
      for (auto const each : counts) bytes.push_back(each * static_cast<std::int64_t>(sizeof(T)));
      return bytes;
    }
  }

  template <class T, class Space, class Op>
  [[nodiscard]] command reducing(collective kind, tensor_view<T, Space> values, int root = -1) const {
    command it{.what = {kind, dtype_of<T>, reduction_of<Op>, false, root, values.size()},
               .from = values.address(),
               .to = values.address(),
               .element_bytes = sizeof(T),
               .elements = &detail::reducing_kernels<T, Space, Op>};
    complete(it);
    return it;
  }
  template <class T, class Space>
  [[nodiscard]] command moving(collective kind, tensor_view<T const, Space> from, tensor_view<T, Space> to,
                               std::int64_t count, int root = -1) const {
    command it{.what = {kind, dtype_of<T>, reduction_kind::none, false, root, count},
               .from = from.address(),
               .to = to.address(),
               .element_bytes = sizeof(T),
               .elements = &detail::moving_kernels<Space>};
    detail::expect_sizes(who, it.what, from.size(), to.size(), self().rank(), self().size());
    complete(it);
    return it;
  }
  template <class T, class Space>
  [[nodiscard]] command ragged_all_gather(tensor_view<T, Space> values, std::span<std::int64_t const> counts) const {
    detail::expect_counts(who, collective::all_gather, counts, values.size(), self().size());
    command it{.what = {collective::all_gather, dtype_of<T>, reduction_kind::none, false, -1, values.size(),
                        detail::fingerprint(counts)},
               .from = values.address(),
               .to = values.address(),
               .element_bytes = sizeof(T),
               .elements = &detail::moving_kernels<Space>,
               .counts = counts};
    it.bytes = bytes_sent::of(it.what, sizeof(T), self().rank(), self().size(), counts);
    it.messages = detail::messages_of(it, self().size());
    return it;
  }
  template <class T, class Space>
  [[nodiscard]] command ragged_all_to_all(tensor_view<T const, Space> from, std::span<std::int64_t const> sent,
                                          tensor_view<T, Space> to, std::span<std::int64_t const> received) const {
    detail::expect_counts(who, collective::all_to_all, sent, from.size(), self().size());
    detail::expect_counts(who, collective::all_to_all, received, to.size(), self().size());
    auto& parts = detail::parts_of_this_thread();
    detail::append_parts(parts, true, dtype_of<T>, sizeof(T), from.address(), sent);
    detail::append_parts(parts, false, dtype_of<T>, sizeof(T), to.address(), received);
    command it{.what = {collective::all_to_all, dtype_of<T>, reduction_kind::none, false, -1, 0, 1},
               .from = from.address(),
               .to = to.address(),
               .element_bytes = sizeof(T),
               .elements = &detail::moving_kernels<Space>,
               .parts = parts};
    count_parts(it);
    return it;
  }
  template <class Space>
  [[nodiscard]] command exchanging(std::span<transfer<Space> const> transfers) const {
    auto& parts = detail::parts_of_this_thread();
    for (auto const& each : transfers) {
      detail::expect_peer(who, each.peer, self().size());
      parts.push_back({each.peer, each.way == transfer<Space>::direction::send, each.type, each.count,
                       static_cast<std::byte*>(each.address)});
    }
    command it{.what = {collective::exchange}, .elements = &detail::moving_kernels<Space>, .parts = parts};
    count_parts(it);
    return it;
  }
  void count_parts(command& it) const noexcept {
    for (auto const& each : it.parts) {
      if (!each.sent || each.peer == self().rank() || each.count == 0) continue;
      it.bytes += static_cast<std::uint64_t>(each.count) * size_of(each.type);
      ++it.messages;
    }
  }
  /// Checks what can be checked of equal slices and roots, and counts.
  void complete(command& it) const {
    detail::expect_right(who, it.what, self().size());
    it.bytes = bytes_sent::of(it.what, it.element_bytes, self().rank(), self().size());
    it.messages = detail::messages_of(it, self().size());
  }

  traffic_counters traffic_;
};

}  // namespace trireme::comm
