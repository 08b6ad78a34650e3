#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/decorate.hpp"
#include "trireme/comm/detail/agreement.hpp"

namespace trireme::comm {

template <communicator Inner>
class checked_world;

/// Decorator: before every collective all ranks make sure that they mean the same one.
///
/// Errors  config_error if there is no patience.
struct checked {
  using is_decorator_description = void;
  template <class Inner>
  using world = checked_world<Inner>;

  std::chrono::milliseconds patience = std::chrono::seconds(1);  ///< by how much ranks may be apart

  friend bool operator==(checked const&, checked const&) = default;
};

[[nodiscard]] inline std::string to_string(checked const& it) {
  return text("comm::checked{.patience = ", to_string(it.patience), "}");
}

/// A world where a collective starts once all of its ranks have asked for it: the same kind, type, count, reduction and
/// root, as the same call of the same group. A rank that asks for another, or for none within the patience, is an error
/// on every rank that names both ranks, both calls and their numbers; of a missing rank, the last call that it made.
///
/// Starting a collective synchronises, also in the `_async` forms: a start returns when all ranks have started. So a
/// rank that is later than `patience` for good reasons is an error too, and an exchange that another rank needs before
/// it can start must itself be started before. Exchanges do not synchronise; the engine checks them, a pair of ranks at
/// a time. Worlds that are split from a checked world are compared together: two ranks that share several groups call
/// them in one order, and calls on different groups are told apart at once. A duplicate is compared apart, as its calls
/// are ordered apart; if its deadline is longer than the original's, its patience is at least that deadline.
///
/// Bytes    its own messages are not counted; each two ranks exchange 64 bytes each way a call. On two threads that
///          takes about 1 us: 8 % of an all_reduce of 1 MiB (13 us), seven times one of 4 bytes.
/// Threads  one caller a rank, also of all worlds split from one another.
/// Errors   comm_error on every rank within the patience, if the engine can end the waits of others (as threads, mpi
///          and processes can); otherwise on the ranks that wait for the missing one.
/// @models  communicator, and every capability that Inner has, which needs exchange in host memory.
template <communicator Inner>
class checked_world : public detail::decorator<checked_world<Inner>, Inner> {
  using base = detail::decorator<checked_world, Inner>;
  using agreement = detail::agreement<detail::undecorated_t<Inner>>;
  static_assert(
      has_exchange<detail::undecorated_t<Inner>, host>,
      "trireme::comm::checked: ranks agree through an exchange in host memory, which this communicator lacks.");

 public:
  static constexpr std::string_view name = "checked";

  explicit checked_world(Inner inner, checked const& how = {})
      : base(std::move(inner)), places_(detail::first_ranks(this->size())), agreement_(apart(patience_of(how))) {}
  checked_world(Inner inner, checked_world const& parent, detail::descent how, int color)
      : base(std::move(inner), parent, how) {
    if (how == detail::descent::duplicate) {
      places_ = detail::first_ranks(this->size());
      group_ = parent.group_;
      agreement_ = apart(patience_after(parent));
      return;
    }
    agreement_ = parent.agreement_;
    group_ = mix(parent.group_ + mix(parent.number_ * 4096 + static_cast<std::uint64_t>(color))) | 1U;
    places_ = detail::first_ranks(this->size());
    places_[static_cast<std::size_t>(this->rank())] = agreement_->rank();
    detail::undecorated(this->inner()).all_gather(tensor_view{places_});
  }

  template <class F>
  decltype(auto) around(command const& it, F&& f) {
    if (it.what.kind != collective::exchange && this->size() > 1) agree(it);
    return f();
  }

 private:
  static std::chrono::milliseconds patience_of(checked const& how) {
    if (how.patience.count() < 1)
      throw config_error(
          text("trireme::comm::checked: .patience is ", to_string(how.patience), "; give the ranks at least 1ms"));
    return how.patience;
  }
  // Who gives a duplicate a longer deadline has a reason why ranks may be late there.
  [[nodiscard]] std::chrono::milliseconds patience_after(checked_world const& parent) {
    auto const patience = parent.agreement_->patience();
    if constexpr (requires { this->deadline(); }) {
      if (this->deadline() > parent.deadline()) return std::max(patience, this->deadline());
    }
    return patience;
  }
  [[nodiscard]] std::shared_ptr<agreement> apart(std::chrono::milliseconds patience) {
    return std::make_shared<agreement>(detail::undecorated(this->inner()).duplicate(), this->names(), patience);
  }

  void agree(command const& it) {
    detail::intent const mine{.group = group_,
                              .number = ++number_,
                              .what = it.what,
                              .sends = 0,
                              .expects = 0,
                              .size = this->size(),
                              .first = this->name_of_rank(0)};
    bool const ragged = it.what.kind == collective::all_to_all && it.what.shape != 0;
    agreement_->reach(mine, places_, [&](int member, detail::intent& told) {
      if (!ragged) return;
      told.sends = it.parts[static_cast<std::size_t>(member)].count;
      told.expects = it.parts[static_cast<std::size_t>(this->size() + member)].count;
    });
  }

  std::vector<std::int32_t> places_;  ///< the ranks of this group, as the agreement numbers them
  std::shared_ptr<agreement> agreement_;
  std::uint64_t group_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace trireme::comm
