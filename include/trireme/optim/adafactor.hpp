#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/ops/sets/whole_tensors.hpp"
#include "trireme/optim/detail/whole_tensor.hpp"
#include "trireme/optim/schedule.hpp"

namespace trireme::optim {

/// Adafactor: Adam whose second moment is stored as means of rows and of columns. For models whose full optimizer state
/// does not fit in memory.
///
/// Method   [Shazeer, Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018], algorithms 4 to 6.
///          In tensors of more than two extents each matrix of the last two is factored; vectors are not.
/// Bytes    for a matrix (n, m): n + m numbers of the master type; for a vector as many as its elements; momentum adds
///          as many as the tensor's elements.
/// Numerics means are summed in double, in the order of the elements.
/// @models  whole_tensor_optimizer: cannot be used with parallel::tensor of degree above 1.
struct adafactor {
  TRIREME_NEEDS_KERNELS("optim::adafactor", adafactor);
  using policy_category = slot::optimizer;

  double learning_rate =
      1e-2;  ///< used where `schedule` is empty; times the root mean square of the tensor if `scaled`
  optim::schedule schedule{};
  bool relative = false;  ///< at most 1 / sqrt(step), counted from 1
  bool scaled = true;     ///< multiply the rate by each tensor's root mean square (at least `least_scale`)
  double least_scale = 1e-3;
  double decay_power = -0.8;  ///< the second moment decays by 1 - step^decay_power
  double epsilon = 1e-30;
  double threshold = 1;  ///< updates with a larger root mean square are clipped to it
  double momentum = 0;
  double weight_decay = 0;
  double clip = 0;  ///< largest global gradient norm; 0 = no clipping
  friend bool operator==(adafactor const&, adafactor const&) = default;

  void validate() const {
    expect_number("optim::adafactor", ".learning_rate", learning_rate, not_negative);
    expect_schedule(schedule);
    expect_number("optim::adafactor", ".least_scale", least_scale, not_negative);
    expect_number("optim::adafactor", ".decay_power", decay_power,
                  {.low = std::numeric_limits<double>::lowest(), .high = 0});
    expect_number("optim::adafactor", ".epsilon", epsilon, not_negative);
    expect_number("optim::adafactor", ".threshold", threshold,
                  {.high = std::numeric_limits<double>::infinity(), .above = true});
    expect_number("optim::adafactor", ".momentum", momentum, below_one);
    expect_number("optim::adafactor", ".weight_decay", weight_decay, not_negative);
    expect_number("optim::adafactor", ".clip", clip, limit_or_none);
  }

  static constexpr bool whole_tensors = true;
  static constexpr std::array<std::string_view, 4> moment_names{"second_moment_rows", "second_moment_columns",
                                                                "second_moment", "first_moment"};
  [[nodiscard]] shape moment_shape(std::size_t which, parameter_info const& info) const {
    auto const rank = info.extents.rank();
    if (which == 3) return momentum > 0 ? info.extents : shape{0};
    if ((which == 2) == (rank > 1)) return {0};
    if (which == 2) return info.extents;
    shape means;
    for (int axis = 0; axis < rank; ++axis) {
      if (axis != (which == 0 ? rank - 1 : rank - 2)) means.push_back(info.extents[axis]);
    }
    return means;
  }
  [[nodiscard]] double rate_at(std::int64_t step) const {
    auto const now = optim::rate_at(schedule, learning_rate, step);
    return relative ? std::min(now, 1 / std::sqrt(static_cast<double>(step + 1))) : now;
  }

  template <class Env>
  void update(tensor_update<Env> const& tensor, std::int64_t step) const {
    using real = typename Env::master;
    auto const extents = tensor.info.extents;
    auto const rank = extents.rank();
    auto const columns = rank < 1 ? 1 : extents[rank - 1], rows = rank < 2 ? 1 : extents[rank - 2];
    auto const direction = tensor.scratch.template take<real>(extents);
    auto const column_sums = tensor.scratch.template take<double>({columns});
    ops::whole_tensors_on<typename Env::space>::adafactor(
        tensor.value, direction, column_sums, tensor.moments[0], tensor.moments[1], tensor.moments[2],
        tensor.moments[3], tensor.gradient,
        {.rows = rows,
         .columns = columns,
         .learning_rate = rate_at(step),
         .keep = 1 - std::pow(count_of_updates(tensor, step), decay_power),
         .epsilon = epsilon,
         .threshold = threshold,
         .scaled = scaled,
         .least_scale = least_scale,
         .momentum = momentum,
         .weight_decay = tensor.info.decays ? weight_decay : 0,
         .scale = tensor.scale});
    detail::write_outputs(tensor);
  }
};

[[nodiscard]] inline std::string to_string(adafactor const& o) {
  return text("optim::adafactor{.learning_rate = ", o.learning_rate, ", .schedule = ", to_string(o.schedule),
              ", .relative = ", o.relative, ", .scaled = ", o.scaled, ", .least_scale = ", o.least_scale,
              ", .decay_power = ", o.decay_power, ", .epsilon = ", o.epsilon, ", .threshold = ", o.threshold,
              ", .momentum = ", o.momentum, ", .weight_decay = ", o.weight_decay, ", .clip = ", o.clip, "}");
}

}  // namespace trireme::optim
