#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/parallel/exchange_report.hpp"

namespace trireme::parallel::detail {

/// One collective for everything that must be decided together before any state changes.
class ballot {
 public:
  /// Collective. The norm (NaN if it is not known), whether all gradients are finite, and how many votes there are.
  /// @param squares  of this rank's gradients; becomes that of all ranks.
  template <class Comm>
  exchange_result cast(Comm& everyone, exact_sum& squares, std::int64_t votes, bool norm_known) {
    auto const limbs = squares.state();
    numbers_.assign(limbs.begin(), limbs.end());
    numbers_.push_back(votes);
    everyone.all_reduce(tensor_view<std::int64_t>(numbers_), reduction::sum{});
    for (std::size_t i = 0; i < limbs.size(); ++i) limbs[i] = numbers_[i];
    double const norm = norm_known ? std::sqrt(squares.value()) : std::numeric_limits<double>::quiet_NaN();
    return {norm, squares.non_finite() == 0, numbers_.back()};
  }

 private:
  std::vector<std::int64_t> numbers_;  // kept: no allocation
};

}  // namespace trireme::parallel::detail
