#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/contract/axis.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/expert_group.hpp"
#include "trireme/contract/rule.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/text.hpp"
#include "trireme/parallel/grid.hpp"

namespace trireme::parallel {

/// Expert parallelism: the ranks of a group process different samples, as under data, and divide the experts of each
/// layer among them; all other parameters are replicated. Rows travel to their chosen experts, and back.
///
/// Bytes    of a layer with experts, per micro-batch and rank: four ragged all_to_alls of rows * choices * channels of
///          the compute type (two of them backward; a rank's own rows stay), and an all_gather of 8 bytes an expert.
///          Once a step, an all_reduce of the gradients of everything but experts, after the exchange among replicas:
///          it does not overlap with backward.
/// Ranks    all ranks of a group run the same number of micro-batches: a rank with fewer samples takes part in the
///          others' without rows.
/// Needs    has_ragged_all_to_all of the compute type, has_all_gather of int64, has_all_reduce of gradients.
/// Method   [Lepikhin et al., "GShard", 2020], without a capacity: no row is dropped.
/// Errors   config_error if there are more ways than experts.
struct expert {
  using policy_category = slot::parallel;
  std::int64_t ways = 0;  ///< ranks that divide the experts; 0: the ranks that other axes leave
  friend bool operator==(expert const&, expert const&) = default;

  void validate() const { expect_number("parallel::expert", ".ways", ways, not_negative); }

  static constexpr std::string_view name = "expert";
  static constexpr std::string_view kind = name;
  static constexpr axis_facts facts{
      .samples = axis_samples::split, .parameters = axis_parameters::distributed, .equal_passes = true};

  TRIREME_RULE(needs_all_to_all, "expert-needs-all-to-all",
               "parallel::expert needs ragged all_to_all, all_gather and all_reduce, "
               "but this communicator lacks one of them",
               "use another communicator",
               has_ragged_all_to_all<typename C::comm, typename C::env::compute, typename C::space>&&
                   has_all_gather<typename C::comm, std::int64_t>&&
                       has_all_reduce<typename C::comm, typename C::env::gradient, reduction::sum, typename C::space>);
  using rules = rule_list<needs_all_to_all>;

  template <class Env, class Comm>
  class instance;
};

[[nodiscard]] inline std::string to_string(expert const& e) { return text("parallel::expert{.ways = ", e.ways, "}"); }

/// An expert group on a communicator: all of its ranks are members.
///
/// Ranks    collective, as the calls of expert_group are.
/// Threads  one owner; the communicator must outlive it, and must not be used otherwise.
/// Errors   comm_error from its calls.
template <class Env, class Comm>
class communicator_experts final : public expert_group<Env> {
 public:
  using typename expert_group<Env>::view;

  explicit communicator_experts(Comm& world) : expert_group<Env>({world.rank(), world.size()}), world_(world) {}

 private:
  void do_gather(std::span<std::int64_t> table) override { world_.all_gather(tensor_view<std::int64_t>(table)); }
  void do_all_to_all(view to, std::span<std::int64_t const> received, view from,
                     std::span<std::int64_t const> sent) override {
    in_elements(received_, received, to.extent(1));
    in_elements(sent_, sent, from.extent(1));
    world_.all_to_all(tensor_view<typename view::value_type const, typename view::space>(from), sent_, to, received_);
  }
  static void in_elements(std::vector<std::int64_t>& elements, std::span<std::int64_t const> rows,
                          std::int64_t columns) {
    elements.clear();
    for (auto const count : rows) elements.push_back(count * columns);
  }

  Comm& world_;
  std::vector<std::int64_t> sent_, received_;
};

/// Offers the ranks along the axis to the units.
template <class Env, class Comm>
class expert::instance {
  static_assert(expert_group<Env>::kind == kind);

 public:
  instance(expert const&, grid<Comm>& grid) : group_(*grid.along(kind)) {}
  void offer(rank_groups<Env>& groups) { groups.offer(group_); }
  [[nodiscard]] static std::string refuses_tree() {
    return "sums micro-batches one by one, but the experts of parallel::expert mix their rows; leave one of them out";
  }

 private:
  communicator_experts<Env, Comm> group_;
};

}  // namespace trireme::parallel
