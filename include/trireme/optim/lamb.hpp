#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/optim/detail/whole_tensor.hpp"
#include "trireme/optim/schedule.hpp"

namespace trireme::optim {

/// LAMB: AdamW whose step on each tensor has the tensor's norm times the rate. For very large batches.
///
/// Method   [You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020], algorithm 2,
///          with bias corrections: value -= rate * (|value| / |u|) * u, u = m / (sqrt(v) + epsilon) + decay * value.
///          The ratio is 1 where either norm is 0.
/// Bytes    per parameter: two moments of the master type, on the rank that owns the tensor.
/// Numerics norms are summed in double over the whole tensor, so they do not depend on the number of ranks.
/// @models  whole_tensor_optimizer: cannot be used with parallel::tensor of degree above 1.
struct lamb {
  using policy_category = slot::optimizer;

  double learning_rate = 1e-3;  ///< used where `schedule` is empty
  optim::schedule schedule{};
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.01;
  double clip = 0;  ///< largest global gradient norm; 0 = no clipping
  friend bool operator==(lamb const&, lamb const&) = default;

  void validate() const {
    expect_number("optim::lamb", ".learning_rate", learning_rate, not_negative);
    expect_schedule(schedule);
    expect_number("optim::lamb", ".beta1", beta1, below_one);
    expect_number("optim::lamb", ".beta2", beta2, below_one);
    expect_number("optim::lamb", ".epsilon", epsilon, not_negative);
    expect_number("optim::lamb", ".weight_decay", weight_decay, not_negative);
    expect_number("optim::lamb", ".clip", clip, limit_or_none);
  }

  static constexpr bool whole_tensors = true;
  static constexpr std::array<std::string_view, 2> moment_names{"first_moment", "second_moment"};
  [[nodiscard]] static shape moment_shape(std::size_t, parameter_info const& info) { return info.extents; }
  [[nodiscard]] double rate_at(std::int64_t step) const { return optim::rate_at(schedule, learning_rate, step); }

  template <class Env>
  void update(tensor_update<Env> const& tensor, std::int64_t step) const {
    using real = typename Env::master;
    auto const count = count_of_updates(tensor, step);
    auto const correction1 = static_cast<real>(1 / (1 - std::pow(beta1, count)));
    auto const correction2 = static_cast<real>(1 / (1 - std::pow(beta2, count)));
    auto const keep1 = static_cast<real>(beta1), keep2 = static_cast<real>(beta2);
    auto const new1 = static_cast<real>(1 - beta1), new2 = static_cast<real>(1 - beta2);
    auto const pull = static_cast<real>(tensor.info.decays ? weight_decay : 0);
    auto const scale = static_cast<real>(tensor.scale);
    ops::on<typename Env::space>::with_values(
        [&](auto value, auto first, auto second, auto gradient) {
          auto const direction = [&](std::size_t i) {
            return first[i] * correction1 / (std::sqrt(second[i] * correction2) + static_cast<real>(epsilon)) +
                   pull * value[i];
          };
          double squares = 0;
          for (std::size_t i = 0; i < value.size(); ++i) {
            real const g = scale * static_cast<real>(gradient[i]);
            first[i] = keep1 * first[i] + new1 * g;
            second[i] = keep2 * second[i] + new2 * g * g;
            auto const u = static_cast<double>(direction(i));
            squares += u * u;
          }
          auto const length = std::sqrt(detail::sum_of_squares(value));
          auto const ratio = length > 0 && squares > 0 ? length / std::sqrt(squares) : 1.0;
          auto const by = static_cast<real>(rate_at(step) * ratio);
          for (std::size_t i = 0; i < value.size(); ++i) value[i] -= by * direction(i);
        },
        tensor.value, tensor.moments[0], tensor.moments[1], tensor.gradient);
    detail::write_outputs(tensor);
  }
};

[[nodiscard]] inline std::string to_string(lamb const& o) {
  return text("optim::lamb{.learning_rate = ", o.learning_rate, ", .schedule = ", to_string(o.schedule),
              ", .beta1 = ", o.beta1, ", .beta2 = ", o.beta2, ", .epsilon = ", o.epsilon,
              ", .weight_decay = ", o.weight_decay, ", .clip = ", o.clip, "}");
}

}  // namespace trireme::optim
