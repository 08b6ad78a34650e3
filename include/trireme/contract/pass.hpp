#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "trireme/contract/dataset.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/numerics.hpp"
#include "trireme/contract/paged_rows.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/precision_state.hpp"
#include "trireme/contract/rank_groups.hpp"
#include "trireme/contract/tensor_group.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/rng.hpp"

namespace trireme {

/// What a pass is for. `train` keeps what backward needs and applies dropout; `evaluate` only sums losses; `predict`
/// returns outputs and reads no targets; `input_gradient` computes the same as `evaluate`, and keeps what backward
/// needs for the gradient of the inputs. (Plain models never get the last one.)
enum class purpose { train, evaluate, predict, input_gradient };

/// What is known about a step's loss before its first pass, if units need it (adds_sample_losses): how many of all rows
/// of the step, on all ranks, the model's loss will count.
///
/// Why: gradients are divided by that number when they are applied, which is right for losses of rows. A term of the
/// loss that does not depend on targets, such as the load balance of experts, must not grow when targets are left out.
struct loss_rows {
  double counted = 1;    ///< the share of all rows that is counted; 1 if none is
  double of_sample = 0;  ///< counted rows of a sample, averaged over the step; 0: not known
  bool none = false;     ///< no row is counted

  [[nodiscard]] static loss_rows of(loss_sum const& all, std::int64_t all_samples) noexcept {
    auto const rows = static_cast<double>(all.count == 0 ? all.left_out : all.count);
    return {all.counted_fraction(), all_samples == 0 ? 0 : rows / static_cast<double>(all_samples), all.count == 0};
  }
};

/// The information that one micro-batch's pass through the model needs, and its memory.
template <class Env>
struct pass {
  using space = typename Env::space;
  using activation_view = tensor_view<typename Env::compute, space>;

  arena<space>& activations;       ///< released when the micro-batch is done
  arena<space>& scratch;           ///< released when the unit returns
  samples_in<space> const& batch;  ///< of each sample the positions on this rank
  random_key key;                  ///< for dropout, together with the samples' ids
  std::uint64_t version = 0;       ///< changes whenever parameter values do
  double weight = 1;               ///< of one sample's mean loss in the loss that backward differentiates
  trireme::purpose purpose = trireme::purpose::train;
  losses_in<space> loss{};  ///< out: the sum of losses of this micro-batch, of forward or backward; the same on all
                            ///< ranks of the group
  rank_groups<Env> const& groups =
      rank_groups<Env>::none();     ///< ranks that share this unit's work: some_group::of(pass)
  std::size_t saved_index = 0;      ///< index of the units' saved state: micro-batches in flight have different ones
  std::int64_t rows_of_sample = 0;  ///< see trireme::rows_of_sample()
  tensor_group<Env>& group = tensor_group<Env>::of(groups);  ///< the group of them that shares this unit's matrices
  precision_state<typename Env::precision>* precision = nullptr;  ///< may write operands of products itself
  loss_rows rows{};                                               ///< of the step's loss
  std::uint32_t first_site = 0;  ///< added to the dropout sites of the unit: how many the units before it have
  /// For prediction of rows of many sequences: where each row stands. The batch is one sample that has them as
  /// positions, (1, N). Layers that see other positions look here, and keep what later positions need in pages. Null:
  /// samples are whole, and nothing is kept.
  paged_rows const* paged = nullptr;

  /// The weight of a loss term that every sample has once, whatever its targets: in training add its sum over the
  /// samples, times this, to the loss (`loss += loss_sum{sum}`); its gradient has weight weight_of_sample(). The term
  /// then is a mean over all samples of the step, on all ranks.
  /// @param otherwise  rows of a sample, for a model whose last unit cannot tell which rows its loss will count.
  [[nodiscard]] double rows_of_loss(std::int64_t otherwise) const noexcept {
    return rows.of_sample > 0 ? rows.of_sample : static_cast<double>(otherwise);
  }
  [[nodiscard]] double weight_of_sample() const noexcept { return weight * rows.counted; }
  [[nodiscard]] bool training() const noexcept { return purpose == trireme::purpose::train; }
  /// Whether values for backward must be kept. Without training(), only for the gradient of the inputs.
  [[nodiscard]] bool backward_follows() const noexcept {
    return training() || purpose == trireme::purpose::input_gradient;
  }
  /// The operand that a product with the weight of this name reads instead of x: x itself, or the precision's
  /// conversion of it, in scratch memory.
  template <class View>
  [[nodiscard]] View operand(std::string_view name, product_operand::role role, View x,
                             product_operand::product of = product_operand::product::forward, bool head = false) {
    using element = std::remove_const_t<typename View::value_type>;
    if constexpr (writes_operands<precision_state<typename Env::precision>, element, space>) {
      product_operand const which{name, role, training(), of, head, draw()};
      if (precision == nullptr || !is_written(*precision, which)) return x;
      auto const to = scratch.template take<element>(x.extents());
      if constexpr (!without_elements<space>) precision->operand(which, tensor_view<element const, space>(x), to);
      return to;
    } else {
      return x;
    }
  }
  /// See product_operand::draw.
  [[nodiscard]] std::uint64_t draw() const noexcept {
    std::uint64_t first = 0;  // a device's numbers of samples are in its memory, and its products draw no numbers
    if constexpr (std::is_same_v<space, host>) {
      if (!batch.ids.empty()) first = static_cast<std::uint64_t>(batch.ids[0]);
    }
    return mix(mix(key.seed ^ mix(key.step)) ^ first);
  }
  /// Activations that live until backward has passed (or, outside training, until the pass ends).
  [[nodiscard]] activation_view take(shape extents) {
    return activations.template take<typename Env::compute>(extents);
  }
};

}  // namespace trireme
