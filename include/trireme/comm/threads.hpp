#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/detail/colors.hpp"
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
  return text("comm::threads{.ranks = ", it.ranks, ", .deadline = ", to_string(it.deadline),
              it.pin ? "}" : ", .pin = false}");
}

/// One rank of comm::threads.
///
/// Each rank works on its slice of all buffers, in rank order, and writes the result to all: every element is read and
/// written once a rank, and all ranks hold the same bits, on every run. Messages of up to 32 bytes travel with their
/// announcement. Memory of any space will do if its kernels are known (detail/kernels.hpp).
///
/// Bytes    counted as comm::bytes_sent says. Memory traffic of a large all_reduce is 2 * size * n bytes in all.
/// Ranks    every rank calls the same collectives in the same order; what differs in kind, type, count, reduction or
///          root is an error on every rank (level normal).
/// Numerics in rank order; bfloat16 is summed in float and rounded once. The same bits as comm::mpi.
/// Threads  one caller a rank. A view must outlive its request. Progress is made by the ranks that test or wait.
/// Errors   comm_error if a rank fails, is late past the deadline, or has returned; it names that rank by its rank in
/// the
///          launch. After an error every communicator of the launch only throws. config_error for sizes that cannot be
///          cut.
class threads_world : public collectives<threads_world> {
 public:
  using request = threads_request;
  static constexpr std::string_view name = "threads";

  threads_world(std::shared_ptr<detail::group> members, int rank) noexcept : group_(std::move(members)), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return group_->deadline; }

  template <class Space>
  static constexpr bool supports(collective, dtype, reduction_kind) noexcept {
    return requires { &detail::space_kernels<Space>::copy; };
  }

  void run(command const& it) {
    if (it.what.kind == collective::exchange) {  // its list of transfers has memory of its own
      start(it).wait();
      return;
    }
    detail::operation op;
    op.counts = it.counts;
    post(op, it, it.parts.data());
    detail::wait_for(op);
  }
  [[nodiscard]] request start(command const& it) {
    auto& mine = group_->crew->ranks[static_cast<std::size_t>(group_->members[static_cast<std::size_t>(rank_)])];
    auto& op = detail::enlist(mine);
    try {
      op.kept_counts.assign(it.counts.begin(), it.counts.end());
      op.counts = op.kept_counts;
      op.kept_parts.assign(it.parts.begin(), it.parts.end());
      if (it.what.kind == collective::exchange)
        post_exchange(op, it);
      else
        post(op, it, op.kept_parts.data());
    } catch (...) {
      detail::dismiss(mine, op);
      throw;
    }
    op.keep = group_;
    return request(op);
  }

  /// The views that all ranks passed, in rank order. They may differ in shape. Allocates the vector.
  template <class T, class Space>
  [[nodiscard]] std::vector<tensor_view<T, Space>> peers(tensor_view<T, Space> view) {
    return collect(collective::peers, dtype_of<std::remove_const_t<T>>, view);
  }
  /// All memory is within reach of all ranks.
  template <element T>
  [[nodiscard]] tensor<T> allocate(shape extents) const {
    return tensor<T>(extents);
  }

  /// The group of the ranks that pass the same color, in the order of (key, rank). color >= 0. Its traffic starts at 0.
  [[nodiscard]] threads_world split(int color, int key) {
    detail::expect_color(who, color);
    return regroup(collective::split, color, key, deadline());
  }
  /// The same ranks again, whose calls are counted and ordered apart from this one's.
  [[nodiscard]] threads_world duplicate() { return duplicate(deadline()); }
  [[nodiscard]] threads_world duplicate(std::chrono::milliseconds deadline) {
    return regroup(collective::duplicate, 0, 0, deadline);
  }

  /// Tells the other ranks that this one ends with an error, which ends their waits.
  void abandon(std::string const& sentence) noexcept {
    try {
      auto const launched_as = group_->members[static_cast<std::size_t>(rank_)];
      group_->crew->fail(launched_as, text(who, ": rank ", launched_as, " ended with an error: ", sentence));
    } catch (...) {  // without memory for a sentence their deadlines end the waits
    }
  }

 private:
  [[nodiscard]] threads_world regroup(collective kind, int color, int key, std::chrono::milliseconds deadline) {
    auto const chosen = detail::ranks_of_color(collect(kind, dtype::i32, detail::color_and_key{color, key}), color);
    std::shared_ptr<detail::group> made;
    if (chosen.front() == rank_) {
      std::vector<int> members;
      for (int const rank : chosen) members.push_back(group_->members[static_cast<std::size_t>(rank)]);
      made = std::make_shared<detail::group>(group_->crew, std::move(members), deadline);
    }
    auto const groups = collect(kind, dtype::u64, made);
    auto const place = std::ranges::find(chosen, rank_) - chosen.begin();
    return {groups[static_cast<std::size_t>(chosen.front())], static_cast<int>(place)};
  }

  /// Bytes that travel with the announcement, if they are so few.
  [[nodiscard]] bool fits_in_posting(command const& it) const noexcept {
    if (it.elements == nullptr || !it.elements->touchable || it.what.shape != 0) return it.elements == nullptr;
    auto const whole = it.what.kind == collective::scatter ? it.what.count * size() : it.what.count;
    return static_cast<std::size_t>(whole) * it.element_bytes <= detail::posting::value_bytes;
  }

  void prepare(detail::operation& op, command const& it) {
    op.where = group_.get();
    op.what = it.what;
    op.rank = rank_;
    op.elements = it.elements;
    op.element_bytes = it.element_bytes;
    op.divisor = it.divisor;
    op.from_ = it.from;
    op.own = it.to;
    if (group_->crew->failed()) detail::throw_failure(op);
    if (it.elements != nullptr && it.elements->complete != nullptr) it.elements->complete();  // others read it now
  }
  void post(detail::operation& op, command const& it, part const* parts) {
    prepare(op, it);
    op.what.by_value = op.collect == nullptr && fits_in_posting(it);
    op.number = group_->boxes[static_cast<std::size_t>(rank_)].claim([this] { return group_->lowest_unfinished(); });
    auto& posting = group_->at(rank_, op.number);
    posting.what = op.what;
    if (!op.what.by_value) {
      posting.memory = {it.from, it.to, parts};
    } else if (it.what.kind == collective::scatter) {
      if (rank_ == it.what.root)
        std::memcpy(posting.values, it.from, static_cast<std::size_t>(it.what.count * size()) * it.element_bytes);
    } else if (it.what.count > 0) {
      std::memcpy(posting.values, it.from, static_cast<std::size_t>(it.what.count) * it.element_bytes);
    }
    posting.word.store(detail::arrived_word(op.number));
    group_->crew->ring();
  }
  void post_exchange(detail::operation& op, command const& it) {
    prepare(op, it);
    for (auto const& each : it.parts) {
      auto& way = each.sent ? group_->between(rank_, each.peer) : group_->between(each.peer, rank_);
      op.transfers.push_back({each, each.sent ? way.post(each) : way.expect()});
    }
    group_->crew->ring();
  }

  /// What all ranks passed, in rank order.
  template <class X>
  std::vector<X> collect(collective kind, dtype type, X const& mine) {
    std::vector<X> all(static_cast<std::size_t>(size()));
    detail::operation op;
    op.collect = &detail::collect_share<X>;
    post(op, {.what = {kind, type}, .from = &mine, .to = &all}, nullptr);
    detail::wait_for(op);
    return all;
  }

  std::shared_ptr<detail::group> group_;
  int rank_;
};

}  // namespace trireme::comm
