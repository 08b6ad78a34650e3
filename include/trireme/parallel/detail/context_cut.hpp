#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/contract/context_group.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"

namespace trireme::parallel::detail {

/// Copies a rank's positions of each sample of micro-batches to memory of its own.
template <class Space>
class context_cut {
 public:
  explicit context_cut(context_shard const& part) noexcept : part_(part) {}

  /// The same samples with this rank's positions; valid until the next call.
  [[nodiscard]] std::span<samples const> operator()(std::span<samples const> batches) {
    while (kept_.size() < 2 * batches.size()) kept_.emplace_back();
    cut_.clear();
    for (auto const& each : batches) {
      check(each);
      auto& inputs = kept_[2 * cut_.size()];
      auto& targets = kept_[2 * cut_.size() + 1];
      cut_.push_back({cut(each.inputs, inputs), cut(each.targets, targets), each.ids});
    }
    return cut_;
  }

 private:
  using bytes = tensor_view<std::uint8_t const>;

  void check(samples const& batch) const {
    auto const& extents = batch.inputs.extents;
    auto const positions = extents.rank() < 2 ? 1 : extents[1];
    if (positions % part_.stretch_count() != 0) {
      throw config_error(text("trireme::parallel::context: samples of ", how_many(positions, "position"),
                              " cannot be cut into ", part_.stretch_count(), " equal slices, ", part_.stretches(),
                              " for each of ", part_.own.size, " ways; use samples of a multiple of ",
                              how_many(part_.stretch_count(), "position"), ", or use fewer ways"));
    }
    auto const& wanted = batch.targets.extents;
    if (wanted.rank() >= 2 && wanted[1] == positions) return;
    throw config_error(text("trireme::parallel::context: targets of shape ", to_string(wanted), " for inputs of shape ",
                            to_string(extents), "; parallel::context needs one target a position"));
  }

  any_view<host> cut(any_view<host> const& from, trireme::tensor<std::uint8_t>& kept) const {
    auto const whole = from.extents[1];
    shape extents{from.extents[0], whole / part_.own.size};
    for (int axis = 2; axis < from.extents.rank(); ++axis) extents.push_back(from.extents[axis]);
    if constexpr (without_elements<Space>) {  // they are never read
      return {from.address, from.type, extents};
    } else {
      if (from.empty()) return {from.address, from.type, extents};
      auto const here = extents[1];
      auto const position = static_cast<std::int64_t>(from.bytes()) / (extents[0] * whole);
      auto const size = extents[0] * here * position;
      if (kept.size() < size) kept = trireme::tensor<std::uint8_t>(shape{size});
      bytes const all(static_cast<std::uint8_t const*>(from.address), shape{static_cast<std::int64_t>(from.bytes())});
      for (std::int64_t b = 0; b < extents[0]; ++b) {
        for (int which = 0; which < part_.stretches(); ++which) {
          auto const at = part_.at(which, here);
          auto const from_here = all.flat((b * whole + at.position) * position, at.count * position).span();
          auto const to = kept.view().flat((b * here + at.row) * position, at.count * position).span();
          std::copy(from_here.begin(), from_here.end(), to.begin());
        }
      }
      return {kept.view().address(), from.type, extents};
    }
  }

  context_shard part_;
  std::vector<trireme::tensor<std::uint8_t>> kept_;  // inputs and targets of each micro-batch
  std::vector<samples> cut_;
};

}  // namespace trireme::parallel::detail
