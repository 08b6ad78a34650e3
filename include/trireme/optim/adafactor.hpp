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
#include "trireme/ops/types.hpp"
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
    auto const last = static_cast<std::size_t>(extents.rank() < 1 ? 1 : extents[extents.rank() - 1]);
    auto const rows = static_cast<std::size_t>(extents.rank() < 2 ? 1 : extents[extents.rank() - 2]);
    auto const direction = tensor.scratch.template take<real>(extents);
    auto const column_sums = tensor.scratch.template take<double>({static_cast<std::int64_t>(last)});
    ops::on<typename Env::space>::with_values(
        [&](auto value, auto u, auto sums, auto row_means, auto column_means, auto second, auto first, auto gradient) {
          auto const keep = 1 - std::pow(count_of_updates(tensor, step), decay_power);
          auto const average = [&](real& moment, double now) {
            moment = static_cast<real>(keep * static_cast<double>(moment) + (1 - keep) * now);
          };
          auto const square = [&](std::size_t i) {
            auto const g = tensor.scale * static_cast<double>(gradient[i]);
            return g * g + epsilon;
          };
          auto const scale = static_cast<real>(tensor.scale);
          for (std::size_t i = 0; i < second.size(); ++i) {
            average(second[i], square(i));
            u[i] = scale * static_cast<real>(gradient[i]) / std::sqrt(second[i]);
          }
          for (std::size_t m = 0; m * rows < row_means.size(); ++m) {  // each matrix
            auto const at = m * rows * last;
            auto const row = row_means.subspan(m * rows, rows);
            auto const column = column_means.subspan(m * last, last);
            double mean = 0;
            for (auto& each : sums) each = 0;
            for (std::size_t r = 0; r < rows; ++r) {
              double sum = 0;
              for (std::size_t c = 0; c < last; ++c) {
                auto const now = square(at + r * last + c);
                sum += now;
                sums[c] += now;
              }
              average(row[r], sum / static_cast<double>(last));
              mean += static_cast<double>(row[r]) / static_cast<double>(rows);
            }
            for (std::size_t c = 0; c < last; ++c) average(column[c], sums[c] / static_cast<double>(rows));
            for (std::size_t r = 0; r < rows; ++r) {
              auto const of_row = static_cast<real>(std::sqrt(mean / static_cast<double>(row[r])));
              for (std::size_t c = 0; c < last; ++c) {
                auto const i = at + r * last + c;
                u[i] = scale * static_cast<real>(gradient[i]) * of_row / std::sqrt(column[c]);
              }
            }
          }
          auto const size = static_cast<double>(value.size());
          auto const length = std::sqrt(detail::sum_of_squares(u) / size) / threshold;
          auto by = rate_at(step);
          if (scaled) by *= std::max(least_scale, std::sqrt(detail::sum_of_squares(value) / size));
          auto const pull = static_cast<real>(1 - by * (tensor.info.decays ? weight_decay : 0));
          auto const along = static_cast<real>(by / std::max(1.0, length));
          for (std::size_t i = 0; i < value.size(); ++i) {
            real change = along * u[i];
            if (!first.empty()) change = first[i] += static_cast<real>(1 - momentum) * (change - first[i]);
            value[i] = pull * value[i] - change;
          }
        },
        tensor.value, direction, column_sums, tensor.moments[0], tensor.moments[1], tensor.moments[2],
        tensor.moments[3], tensor.gradient);
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
