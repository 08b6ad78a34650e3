#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/contract/axis.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/rule.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/contract/tensor_group.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/sets/parts.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/grid.hpp"

namespace trireme::parallel {

/// Tensor parallelism: the ranks of a group share the matrices of each layer. Attention is split by heads, an mlp by
/// its hidden width, the tied table by tokens; parts may be uneven. Norms and positions are replicated.
///
/// Bytes    of a GPT, per micro-batch and rank: 4 all_reduces of rows * channels of the compute type a layer, half of
///          them backward, one more for the embeddings and one for the head's backward; in the head, for each chunk of
///          rows, one of a number a row (the largest logit) and one of two, of the accumulate type.
/// Needs    has_all_reduce of the compute type, and of the accumulate type with sum and max.
/// Method   [Shoeybi et al., "Megatron-LM", 2019].
/// Errors   config_error if there are more ways than heads, or than tokens.
struct tensor {
  using policy_category = slot::parallel;
  std::int64_t ways = 0;  ///< ranks that share a layer; 0: the ranks that other axes leave
  friend bool operator==(tensor const&, tensor const&) = default;

  void validate() const { expect_number("parallel::tensor", ".ways", ways, not_negative); }

  static constexpr std::string_view name = "tensor";
  static constexpr std::string_view kind = name;
  static constexpr axis_facts facts{.parameters = axis_parameters::sharded};

  TRIREME_RULE(
      needs_all_reduce, "tensor-needs-all-reduce",
      "parallel::tensor needs all_reduce of activations with sum and max, which this communicator lacks",
      "use another communicator",
      has_all_reduce<typename C::comm, typename C::env::compute, reduction::sum, typename C::space>&&
          has_all_reduce<typename C::comm, typename C::env::accumulate, reduction::sum, typename C::space>&&
              has_all_reduce<typename C::comm, typename C::env::accumulate, reduction::max, typename C::space>);
  TRIREME_RULE(needs_parts, "tensor-needs-parts-kernels",
               "parallel::tensor distributes words over ranks, and the communicator's memory space lacks kernels "
               "for it",
               "add the kernels of ops::parts_kernels to its ops::on, or leave the axis out",
               (ops::parts_kernels<typename C::space, typename C::env>));
  using rules = rule_list<needs_all_reduce, needs_parts>;

  template <class Env, class Comm>
  class instance;
};

/// Sequence parallelism, beside tensor and in its group: the rows between the products (the residual stream, norms,
/// dropout) are split as well, which divides the memory of their saved activations by `ways`.
///
/// Bytes    as tensor's, each all_reduce as a reduce_scatter and an all_gather (as one all_reduce if rows do not
///          divide); two more all_gathers a layer backward, since the gathered inputs of its products are not kept; and
///          an all_reduce of 2 * channels sums a norm.
/// Needs    also has_reduce_scatter and has_ragged_all_gather of the compute type.
/// Method   [Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022].
struct sequence {
  using policy_category = slot::parallel;
  std::int64_t ways = 0;  ///< 0: as many as tensor; 1: rows are not cut
  friend bool operator==(sequence const&, sequence const&) = default;

  void validate() const { expect_number("parallel::sequence", ".ways", ways, not_negative); }

  static constexpr std::string_view name = "sequence";
  static constexpr std::string_view kind = name;
  static constexpr axis_facts facts{.parameters = axis_parameters::sharded, .same_ranks_as = tensor::kind};

  TRIREME_RULE(needs_tensor, "sequence-needs-tensor",
               "parallel::sequence splits rows over the ranks of parallel::tensor, which the mesh lacks",
               "add parallel::tensor to the mesh, or leave sequence out", C::has(tensor::kind));
  using rules = rule_list<needs_tensor>;
};

[[nodiscard]] inline std::string to_string(tensor const& t) { return text("parallel::tensor{.ways = ", t.ways, "}"); }
[[nodiscard]] inline std::string to_string(sequence const& s) {
  return s.ways == 0 ? "parallel::sequence{}" : text("parallel::sequence{.ways = ", s.ways, "}");
}

/// A tensor group on a communicator: all of its ranks are members.
///
/// Ranks    collective, as the calls of tensor_group are.
/// Threads  one owner; the communicator must outlive it, and must not be used otherwise.
/// Errors   config_error if rows are to be cut and the communicator lacks what that needs; comm_error from its calls.
template <class Env, class Comm>
class communicator_group final : public tensor_group<Env> {
  using value = typename Env::compute;
  using accumulate = typename Env::accumulate;

 public:
  using typename tensor_group<Env>::space;
  using typename tensor_group<Env>::view;
  using typename tensor_group<Env>::sums;

  static constexpr bool can_cut_rows =
      has_reduce_scatter<Comm, value, reduction::sum, space> && has_ragged_all_gather<Comm, value, space>;

  explicit communicator_group(Comm& world, bool cuts_rows = false)
      : tensor_group<Env>({world.rank(), world.size()}, cuts_rows), world_(world) {
    if (cuts_rows && !can_cut_rows) {
      throw config_error(
          "trireme::parallel::sequence: this communicator has no reduce_scatter or no ragged all_gather; "
          "leave sequence out, or use another communicator");
    }
  }

 private:
  void do_sum(view values) override { world_.all_reduce(values, reduction::sum{}); }
  void do_sum_of_sums(sums values) override { world_.all_reduce(values, reduction::sum{}); }
  void do_max(sums values) override { world_.all_reduce(values, reduction::max{}); }

  void do_reduce_rows([[maybe_unused]] view all) override {
    if constexpr (can_cut_rows) {
      if (all.extent(0) % world_.size() == 0) {
        world_.reduce_scatter(all, reduction::sum{});
      } else {  // uneven rows
        world_.all_reduce(all, reduction::sum{});
      }
    }
  }
  void do_gather_rows([[maybe_unused]] view all, [[maybe_unused]] view own, [[maybe_unused]] interval here) override {
    if constexpr (can_cut_rows) {
      ops::on<space>::copy(all.rows(here.first, here.count), own);
      counts_.clear();
      for (int rank = 0; rank < world_.size(); ++rank) {
        counts_.push_back(group_rank{rank, world_.size()}.of(all.extent(0)).count * all.extent(1));
      }
      world_.all_gather(all, counts_);
    }
  }

  Comm& world_;
  std::vector<std::int64_t> counts_;
};

/// Offers the ranks along the axis to the units; with rows split if sequence is in the mesh.
template <class Env, class Comm>
class tensor::instance {
 public:
  instance(tensor const&, grid<Comm>& grid) : group_(*grid.along(kind), grid.shape().degree_of(sequence::kind) > 1) {}
  void offer(rank_groups<Env>& groups) { groups.offer(group_); }

 private:
  communicator_group<Env, Comm> group_;
};

}  // namespace trireme::parallel
