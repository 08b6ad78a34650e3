#pragma once

#include <array>
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

/// Stochastic gradient descent with momentum, as PyTorch defines it (no dampening).
///
/// Bytes    per parameter: one velocity of the master type.
struct sgd {
  TRIREME_NEEDS_KERNELS("optim::sgd", sgd);
  using policy_category = slot::optimizer;

  double learning_rate = 1e-2;  ///< used where `schedule` is empty
  optim::schedule schedule{};
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  double clip = 0;  ///< largest global gradient norm; 0 = no clipping
  friend bool operator==(sgd const&, sgd const&) = default;

  void validate() const {
    expect_number("optim::sgd", ".learning_rate", learning_rate, not_negative);
    expect_schedule(schedule);
    expect_number("optim::sgd", ".momentum", momentum, below_one);
    expect_number("optim::sgd", ".weight_decay", weight_decay, not_negative);
    expect_number("optim::sgd", ".clip", clip, limit_or_none);
  }

  static constexpr std::array<std::string_view, 1> moment_names{"velocity"};
  [[nodiscard]] double rate_at(std::int64_t step) const { return optim::rate_at(schedule, learning_rate, step); }

  template <class Env>
  void update(update_segment<Env> const& segment, std::int64_t step) const {
    ops::on<typename Env::space>::sgd(segment.value, segment.moments[0], segment.gradient, segment.outputs,
                                      ops::sgd_numbers{.learning_rate = rate_at(step),
                                                       .momentum = momentum,
                                                       .nesterov = nesterov,
                                                       .weight_decay = segment.decays ? weight_decay : 0});
  }
};

[[nodiscard]] inline std::string to_string(sgd const& o) {
  return text("optim::sgd{.learning_rate = ", o.learning_rate, ", .schedule = ", to_string(o.schedule),
              ", .momentum = ", o.momentum, ", .nesterov = ", o.nesterov, ", .weight_decay = ", o.weight_decay,
              ", .clip = ", o.clip, "}");
}

}  // namespace trireme::optim
