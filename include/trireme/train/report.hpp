#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// The result of one step; the same on every rank except `seconds`.
struct step_report {
  std::int64_t step = 0;     ///< counted from 0
  double loss = 0;           ///< mean over the step's samples on all ranks; NaN where there were none
  double norm = 0;           ///< global gradient norm before clipping
  double learning_rate = 0;  ///< of this step: schedules count steps, skipped ones included
  std::int64_t samples = 0;  ///< over all ranks; 0: no step was taken, and `step` is the next one's number
  double seconds = 0;
  bool skipped = false;  ///< a gradient or a loss was not finite on some rank: nothing was changed
};

/// The result of one call of fit().
struct fit_report {
  std::int64_t first_step = 0;
  std::int64_t steps = 0;    ///< taken in this call
  std::int64_t samples = 0;  ///< over all ranks
  std::int64_t skipped = 0;
  double first_loss = 0;
  double last_loss = 0;
  double last_norm = 0;
  double seconds = 0;
  bool stopped = false;  ///< some rank requested it

  void add(step_report const& done) noexcept {
    if (steps == 0) first_loss = done.loss;
    last_loss = done.loss;
    last_norm = done.norm;
    samples += done.samples;
    skipped += done.skipped ? 1 : 0;
    ++steps;
  }
};

/// The result of a checkpoint written in the background; the same on every rank except `seconds`.
struct save_report {
  std::int64_t step = 0;  ///< the step whose state it holds
  double seconds = 0;     ///< from the copy of the state until the checkpoint was published or given up
  std::string failure;    ///< the error message; empty if it was published
};

}  // namespace trireme
