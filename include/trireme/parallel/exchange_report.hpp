#pragma once

#include <cstdint>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// What is known once all gradients are exchanged; equal on every rank.
struct exchange_result {
  double norm = 0;          ///< global norm of the reduced gradient (NaN if it was not asked for)
  bool finite = true;       ///< whether every gradient of every rank is finite
  std::int64_t votes = 0;   ///< sum of what the ranks wished for, or passed to finish()
  double loss = 0;          ///< mean over all ranks' samples, of the losses that were added to the vote
  bool finite_loss = true;  ///< whether every such loss is finite
  double counted = 1;       ///< the share of all rows that this mean counts; 1 if it counts none
};

/// Of the gradients that an update is about to read.
struct gradient_numbers {
  double norm = 0;      ///< global norm, without the scale
  double scale = 1;     ///< what the losses, and so the gradients, were multiplied by
  double measured = 1;  ///< and what layers have measured (parameter_info::running): the loss scale
};

/// How much of the exchange happened while backward was still running, in seconds since the exchange was made.
struct exchange_times {
  double covered = 0;
  double exposed = 0;
  [[nodiscard]] double hidden() const noexcept { return covered + exposed > 0 ? covered / (covered + exposed) : 0; }
};

/// Bytes of tensors that an exchange has allocated on this rank.
struct exchange_memory {
  std::int64_t parameters = 0;  ///< values that layers read: all, or this rank's slices
  std::int64_t masters = 0;     ///< where the optimizer keeps other numbers than layers read
  std::int64_t gradients = 0;   ///< that are always here: all, or this rank's slices
  std::int64_t buffers = 0;     ///< gathered values, gradients on their way, payloads of compressors
  [[nodiscard]] std::int64_t total() const noexcept { return parameters + masters + gradients + buffers; }
  friend bool operator==(exchange_memory const&, exchange_memory const&) = default;
};

}  // namespace trireme
