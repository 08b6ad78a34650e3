#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/detail/shares.hpp"
#include "trireme/comm/detail/threads_request.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

/// Ranks are threads of this process, which work directly in each other's memory.
///
/// Ranks    `ranks` of them, at most 256; with `pin`, and if there are no more ranks than cores, each runs on a core of
///          its own among those that the process may use.
/// Errors   launch throws config_error if there is no rank or no time.
struct threads {
  using policy_category = slot::communicator;

  int ranks = 2;
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  bool pin = true;

  friend bool operator==(threads const&, threads const&) = default;
};

[[nodiscard]] inline std::string to_string(threads const& it) {
  return text("comm::threads{.ranks = ", it.ranks, ", .deadline = ", detail::to_string(it.deadline),
              it.pin ? "}" : ", .pin = false}");
}

/// One rank of comm::threads.
///
/// Each rank works on its slice of all buffers, in rank order, and writes the result to all: every element is read and
/// written once a rank, and all ranks hold the same bits, on every run. Messages of up to 40 bytes travel with their
/// announcement.
///
/// Bytes    counted as comm::bytes_sent says. Memory traffic of a large all_reduce is 2 * size * n bytes in all.
/// Ranks    every rank calls the same collectives in the same order; what differs in kind, type, count, reduction or
/// root
///          is an error on every rank (level normal).
/// Numerics in rank order; bfloat16 is summed in float and rounded once. The same bits as comm::mpi.
/// Threads  one caller a rank. A view must outlive its request. Progress is made by the ranks that test or wait.
/// Errors   comm_error if a rank fails, is late past the deadline, or has returned; it names that rank by its rank in
/// the
///          launch. After an error every communicator of the launch only throws. config_error for sizes that cannot be
///          cut.
class threads_world {
 public:
  using policy_category = slot::communicator;
  using request = threads_request;
  static constexpr std::string_view name = "threads";

  threads_world(std::shared_ptr<detail::group> members, int rank) noexcept : group_(std::move(members)), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  [[nodiscard]] traffic_counters traffic() const noexcept { return traffic_; }

  void barrier() {
    detail::operation op;
    start(op, {detail::collective::barrier, dtype::u8, {}, true}, nullptr, nullptr, &detail::share_nothing, 0);
    detail::wait_for(op);
  }

  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  void all_reduce(tensor_view<T, Space> values, Op how = {}) {
    detail::operation op;
    start_all_reduce(op, values, how);
    detail::wait_for(op);
  }
  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  [[nodiscard]] request all_reduce_async(tensor_view<T, Space> values, Op how = {}) {
    return in_flight([&](detail::operation& op) { start_all_reduce(op, values, how); });
  }

  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  void reduce_scatter(tensor_view<T, Space> values, Op how = {}) {
    detail::operation op;
    start_reduce_scatter(op, values, how);
    detail::wait_for(op);
  }
  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  [[nodiscard]] request reduce_scatter_async(tensor_view<T, Space> values, Op how = {}) {
    return in_flight([&](detail::operation& op) { start_reduce_scatter(op, values, how); });
  }

  template <element T, class Space>
  void all_gather(tensor_view<T, Space> values) {
    detail::operation op;
    start_all_gather(op, values);
    detail::wait_for(op);
  }
  template <element T, class Space>
  [[nodiscard]] request all_gather_async(tensor_view<T, Space> values) {
    return in_flight([&](detail::operation& op) { start_all_gather(op, values); });
  }

  template <class From, element T, class Space>
  requires std::same_as<std::remove_const_t<From>, T>
  void all_to_all(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    detail::operation op;
    start_all_to_all<T, Space>(op, from, to);
    detail::wait_for(op);
  }
  template <class From, element T, class Space>
  requires std::same_as<std::remove_const_t<From>, T>
  [[nodiscard]] request all_to_all_async(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    return in_flight([&](detail::operation& op) { start_all_to_all<T, Space>(op, from, to); });
  }

  template <element T, class Space>
  void broadcast(tensor_view<T, Space> values, int root) {
    detail::operation op;
    start_broadcast(op, values, root);
    detail::wait_for(op);
  }
  template <element T, class Space>
  [[nodiscard]] request broadcast_async(tensor_view<T, Space> values, int root) {
    return in_flight([&](detail::operation& op) { start_broadcast(op, values, root); });
  }

  /// The views that all ranks passed, in rank order. They may differ in shape. Allocates the vector.
  template <class T, class Space>
  [[nodiscard]] std::vector<tensor_view<T, Space>> peers(tensor_view<T, Space> view) {
    return collect(detail::collective::peers, dtype_of<std::remove_const_t<T>>, view);
  }

  /// The group of the ranks that pass the same color, in the order of (key, rank). color >= 0. Its traffic starts at 0.
  [[nodiscard]] threads_world split(int color, int key) {
    detail::expect_color(who, color);
    struct wish {
      int color, key;
    };
    auto const wishes = collect(detail::collective::split, dtype::i32, wish{color, key});
    std::vector<int> chosen;
    for (int rank = 0; rank < size(); ++rank)
      if (wishes[static_cast<std::size_t>(rank)].color == color) chosen.push_back(rank);
    std::ranges::stable_sort(chosen, {}, [&](int rank) { return wishes[static_cast<std::size_t>(rank)].key; });

    std::shared_ptr<detail::group> made;
    if (chosen.front() == rank_) {
      std::vector<int> members;
      for (int const rank : chosen) members.push_back(group_->members[static_cast<std::size_t>(rank)]);
      made = std::make_shared<detail::group>(group_->crew, std::move(members));
    }
    auto const groups = collect(detail::collective::split, dtype::u64, made);
    auto const place = std::ranges::find(chosen, rank_) - chosen.begin();
    return {groups[static_cast<std::size_t>(chosen.front())], static_cast<int>(place)};
  }

 private:
  static constexpr std::string_view who = "trireme::comm::threads";

  template <class Start>
  request in_flight(Start&& start_it) {
    auto& mine = group_->crew->ranks[static_cast<std::size_t>(group_->members[static_cast<std::size_t>(rank_)])];
    auto& op = detail::enlist(mine);
    try {
      start_it(op);
    } catch (...) {
      detail::dismiss(mine, op);
      throw;
    }
    op.keep = group_;
    return request(op);
  }

  template <class T, class Space, class Op>
  void start_all_reduce(detail::operation& op, tensor_view<T, Space> values, Op) {
    start<T, Space>(op, {detail::collective::all_reduce, dtype_of<T>, detail::reduction_of<Op>}, values, values,
                    &detail::shares<T, Space, Op>::all_reduce,
                    bytes_sent::all_reduce(values.size(), sizeof(T), rank_, size()));
  }
  template <class T, class Space, class Op>
  void start_reduce_scatter(detail::operation& op, tensor_view<T, Space> values, Op) {
    detail::expect_slices(who, detail::collective::reduce_scatter, values.size(), size());
    start<T, Space>(op, {detail::collective::reduce_scatter, dtype_of<T>, detail::reduction_of<Op>}, values, values,
                    &detail::shares<T, Space, Op>::reduce_scatter,
                    bytes_sent::reduce_scatter(values.size(), sizeof(T), size()));
  }
  template <class T, class Space>
  void start_all_gather(detail::operation& op, tensor_view<T, Space> values) {
    detail::expect_slices(who, detail::collective::all_gather, values.size(), size());
    start<T, Space>(op, {detail::collective::all_gather, dtype_of<T>}, values, values,
                    &detail::shares<T, Space>::all_gather, bytes_sent::all_gather(values.size(), sizeof(T), size()));
  }
  template <class T, class Space>
  void start_all_to_all(detail::operation& op, tensor_view<T const, Space> from, tensor_view<T, Space> to) {
    detail::expect_equal_sizes(who, from.size(), to.size());
    detail::expect_slices(who, detail::collective::all_to_all, from.size(), size());
    start<T, Space>(op, {detail::collective::all_to_all, dtype_of<T>}, from, to, &detail::shares<T, Space>::all_to_all,
                    bytes_sent::all_to_all(from.size(), sizeof(T), size()));
  }
  template <class T, class Space>
  void start_broadcast(detail::operation& op, tensor_view<T, Space> values, int root) {
    detail::expect_root(who, root, size());
    start<T, Space>(op, {detail::collective::broadcast, dtype_of<T>, {}, false, root}, values, values,
                    &detail::shares<T, Space>::broadcast,
                    bytes_sent::broadcast(values.size(), sizeof(T), rank_, root, size()));
  }

  template <class T, class Space>
  void start(detail::operation& op, detail::call what, tensor_view<T const, Space> from, tensor_view<T, Space> to,
             void (*share)(detail::operation const&), std::uint64_t bytes) {
    what.count = from.size();
    what.by_value = std::same_as<Space, host> && from.bytes() <= detail::posting::value_bytes;
    start(op, what, from.address(), to.address(), share, bytes);
  }
  void start(detail::operation& op, detail::call what, void const* from, void* to,
             void (*share)(detail::operation const&), std::uint64_t bytes) {
    op.where = group_.get();
    op.what = what;
    op.rank = rank_;
    op.share = share;
    op.own = to;
    if (group_->crew->failed()) detail::throw_failure(op);
    op.number = group_->boxes[static_cast<std::size_t>(rank_)].claim([this] { return group_->lowest_unfinished(); });
    auto& posting = group_->at(rank_, op.number);
    posting.what = what;
    if (!what.by_value)
      posting.memory = {from, to};
    else if (what.count > 0)
      std::memcpy(posting.values, from, static_cast<std::size_t>(what.count) * size_of(what.type));
    posting.word.store(detail::arrived_word(op.number));
    group_->crew->ring();
    traffic_.bytes_sent += bytes;
    traffic_.messages_sent += bytes == 0 ? 0U : static_cast<unsigned>(size() - 1);
    ++traffic_.collectives;
  }

  /// What all ranks passed, in rank order.
  template <class X>
  std::vector<X> collect(detail::collective kind, dtype type, X const& mine) {
    std::vector<X> all(static_cast<std::size_t>(size()));
    detail::operation op;
    start(op, {kind, type}, &mine, &all, &detail::collect_share<X>, 0);
    detail::wait_for(op);
    return all;
  }

  std::shared_ptr<detail::group> group_;
  int rank_;
  traffic_counters traffic_;
};

}  // namespace trireme::comm
