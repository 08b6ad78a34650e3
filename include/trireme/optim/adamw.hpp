#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/ops/sets/update.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/optim/schedule.hpp"

namespace trireme::optim {

/// AdamW: Adam with decoupled weight decay.
///
/// Method   [Loshchilov, Hutter, "Decoupled weight decay regularization", 2019]; bias corrections as in Adam.
/// Bytes    per parameter: two moments of the master type.
/// Numerics decay applies to parameters that ask for it (matrices, not biases and gains).
struct adamw {
  TRIREME_NEEDS_KERNELS("optim::adamw", adamw);
  using policy_category = slot::optimizer;

  double learning_rate = 1e-3;  ///< used where `schedule` is empty
  optim::schedule schedule{};
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double clip = 0;  ///< largest global gradient norm; 0 = no clipping
  friend bool operator==(adamw const&, adamw const&) = default;

  void validate() const {
    expect_number("optim::adamw", ".learning_rate", learning_rate, not_negative);
    expect_schedule(schedule);
    expect_number("optim::adamw", ".beta1", beta1, below_one);
    expect_number("optim::adamw", ".beta2", beta2, below_one);
    expect_number("optim::adamw", ".epsilon", epsilon, not_negative);
    expect_number("optim::adamw", ".weight_decay", weight_decay, not_negative);
    expect_number("optim::adamw", ".clip", clip, limit_or_none);
  }

  static constexpr std::array<std::string_view, 2> moment_names{"first_moment", "second_moment"};
  [[nodiscard]] double rate_at(std::int64_t step) const { return optim::rate_at(schedule, learning_rate, step); }

  template <class Env>
  void update(update_segment<Env> const& segment, std::int64_t step) const {
    auto const count = count_of_updates(segment, step);
    ops::on<typename Env::space>::adamw(segment.value, segment.moments[0], segment.moments[1], segment.gradient,
                                        segment.outputs,
                                        ops::adamw_numbers{.learning_rate = rate_at(step),
                                                           .beta1 = beta1,
                                                           .beta2 = beta2,
                                                           .epsilon = epsilon,
                                                           .weight_decay = segment.decays ? weight_decay : 0,
                                                           .correction1 = 1 - std::pow(beta1, count),
                                                           .correction2 = 1 - std::pow(beta2, count)});
  }
};

[[nodiscard]] inline std::string to_string(adamw const& o) {
  return text("optim::adamw{.learning_rate = ", o.learning_rate, ", .schedule = ", to_string(o.schedule),
              ", .beta1 = ", o.beta1, ", .beta2 = ", o.beta2, ", .epsilon = ", o.epsilon,
              ", .weight_decay = ", o.weight_decay, ", .clip = ", o.clip, "}");
}

}  // namespace trireme::optim
