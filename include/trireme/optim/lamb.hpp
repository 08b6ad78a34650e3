#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/ops/sets/whole_tensors.hpp"
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
  TRIREME_NEEDS_KERNELS("optim::lamb", lamb);
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
    auto const count = count_of_updates(tensor, step);
    ops::whole_tensors_on<typename Env::space>::lamb(tensor.value, tensor.moments[0], tensor.moments[1],
                                                     tensor.gradient,
                                                     {.learning_rate = rate_at(step),
                                                      .beta1 = beta1,
                                                      .beta2 = beta2,
                                                      .epsilon = epsilon,
                                                      .weight_decay = tensor.info.decays ? weight_decay : 0,
                                                      .correction1 = 1 / (1 - std::pow(beta1, count)),
                                                      .correction2 = 1 / (1 - std::pow(beta2, count)),
                                                      .scale = tensor.scale});
    detail::write_outputs(tensor);
  }
};

[[nodiscard]] inline std::string to_string(lamb const& o) {
  return text("optim::lamb{.learning_rate = ", o.learning_rate, ", .schedule = ", to_string(o.schedule),
              ", .beta1 = ", o.beta1, ", .beta2 = ", o.beta2, ", .epsilon = ", o.epsilon,
              ", .weight_decay = ", o.weight_decay, ", .clip = ", o.clip, "}");
}

}  // namespace trireme::optim
