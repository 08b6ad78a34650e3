#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "trireme/contract/parameter.hpp"
#include "trireme/contract/rank_groups.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// The ranks that divide the experts of each layer, as layers see them. They process different samples. Parameters are
/// replicated on all of them except those of experts: each rank has the experts of the range share().of(experts)
/// (parameter_info::distributed). A group of one does nothing.
///
/// Ranks    collective: all members call the same in the same order. A rank without a micro-batch takes part with no
///          rows while others have one.
/// Numerics rows travel unchanged: the result of a row does not depend on the rank that computes it.
template <class Env>
class expert_group : public rank_group<expert_group<Env>> {
 public:
  static constexpr std::string_view kind = "expert";  ///< of the axis, and of the parameters that it distributes
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;

  /// The group of a rank that has all experts.
  [[nodiscard]] static expert_group& one();

  /// All-gather of numbers: `table` has one part a member; this rank has filled in its own.
  void gather(std::span<std::int64_t> table) {
    if (this->size() > 1) do_gather(table);
  }
  /// The first sent[0] rows of `from` go to member 0, the next sent[1] to member 1; received[r] rows of `to` come from
  /// member r. The numbers of rows must match between members.
  void all_to_all(view to, std::span<std::int64_t const> received, view from, std::span<std::int64_t const> sent) {
    if (this->size() > 1) do_all_to_all(to, received, from, sent);
  }

 protected:
  explicit expert_group(trireme::group_rank own) noexcept : rank_group<expert_group<Env>>(own) {}

 private:
  virtual void do_gather(std::span<std::int64_t> table) = 0;
  virtual void do_all_to_all(view to, std::span<std::int64_t const> received, view from,
                             std::span<std::int64_t const> sent) = 0;
};

namespace detail {

/// The group of one: its collectives are never called.
template <class Env>
class experts_of_one final : public expert_group<Env> {
  using typename expert_group<Env>::view;

 public:
  experts_of_one() noexcept : expert_group<Env>({}) {}

 private:
  void do_gather(std::span<std::int64_t>) override {}
  void do_all_to_all(view, std::span<std::int64_t const>, view, std::span<std::int64_t const>) override {}
};

}  // namespace detail

template <class Env>
expert_group<Env>& expert_group<Env>::one() {
  static detail::experts_of_one<Env> group;
  return group;
}

}  // namespace trireme
