#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include "trireme/contract/model.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/parallel/grid.hpp"
#include "trireme/parallel/mesh.hpp"

namespace trireme::detail {

/// The groups that a mesh puts between a rank's units and its communicators; of one where an axis has one way.
template <class Env, class Comm, class Parallel>
class placed_groups {
 public:
  placed_groups(Parallel const& parallel, parallel::grid<Comm>& grid) {
    if constexpr (parallel::has_axis<Parallel, parallel::axis::tensor>) {
      if (auto* const ranks = grid.tensor(); ranks != nullptr)
        tensor_ = std::make_unique<parallel::communicator_group<Env, Comm>>(*ranks, grid.shape().cuts_rows());
    }
    if constexpr (parallel::has_axis<Parallel, parallel::axis::context>) {
      if (auto* const ranks = grid.context(); ranks != nullptr) share_positions(parallel, *ranks);
    }
    if constexpr (parallel::has_axis<Parallel, parallel::axis::expert>) {
      if (auto* const ranks = grid.experts(); ranks != nullptr) {
        refuse_tree(parallel, "keeps micro-batches apart, whose rows meet in the experts of parallel::expert");
        experts_ = std::make_unique<parallel::communicator_experts<Env, Comm>>(*ranks);
      }
    }
  }

  [[nodiscard]] rank_groups<Env> all() const {
    return {tensor_ ? *tensor_ : tensor_group<Env>::one(), context_ ? *context_ : context_group<Env>::one(),
            experts_ ? *experts_ : expert_group<Env>::one()};
  }
  /// Which positions of each sample lie here.
  [[nodiscard]] context_part positions() const { return context_ ? context_->part() : context_part{}; }

 private:
  void share_positions(Parallel const& parallel, Comm& ranks) {
    refuse_tree(parallel,
                text("adds whole micro-batches, whose positions parallel::context shares by ", ranks.size(), " ranks"));
    parallel::detail::for_each_axis(parallel, [&]<class Axis>(Axis const& each) {
      if constexpr (std::is_same_v<Axis, parallel::context>) {
        auto const part = each.part_of({ranks.rank(), ranks.size()});
        if (each.method == parallel::context_method::ring)
          context_ = std::make_unique<parallel::ring_context<Env, Comm>>(ranks, part);
        else
          context_ = std::make_unique<parallel::dealt_context<Env, Comm>>(ranks, part);
      }
    });
  }
  static void refuse_tree(Parallel const& parallel, std::string const& why) {
    auto const samples = parallel::data_axis_of(parallel);
    if (!sums_in_a_tree(samples)) return;
    throw config_error(text("trireme::parallel::", samples.name, ": .reproducible ", why, "; leave one of them out"));
  }

  std::unique_ptr<tensor_group<Env>> tensor_;
  std::unique_ptr<context_group<Env>> context_;
  std::unique_ptr<expert_group<Env>> experts_;
};

}  // namespace trireme::detail
