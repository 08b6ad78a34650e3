#pragma once

#include <cstdint>
#include <span>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// One rank's part of a step: basic_exchange::begin().
struct exchange_step {
  std::int64_t micro_batches = 1;          ///< logical micro-batches of this rank
  std::span<std::int64_t const> places{};  ///< those of them that have samples, which it runs: ascending, from 0
  std::int64_t first = 0;                  ///< number of its first one among all ranks' logical micro-batches
  std::int64_t runs = 0;  ///< number that it runs, if larger: the rest only takes part in those of other ranks
  double scale = 1;       ///< the factor that the step's gradients carry (a loss scale)
  /// The number of the step in the run, for strategies with a period; -1: the one after the last one.
  std::int64_t number = -1;
  std::int64_t samples = 0;         ///< of this rank, for strategies that ask for them
  std::int64_t samples_of_all = 0;  ///< of all ranks; 0: not known
};

/// For begin() in your own loop: gradients become the mean over ranks, whatever their numbers of samples.
struct mean_over_ranks {};

/// The results of exchanging all gradients; equal on every rank.
struct exchange_result {
  double norm = 0;          ///< global norm of the reduced gradient (NaN if it was not requested)
  bool finite = true;       ///< whether every gradient of every rank is finite
  std::int64_t votes = 0;   ///< sum of the numbers that the ranks passed to finish() or added to the vote
  double loss = 0;          ///< mean over all ranks' samples of the losses added to the vote
  bool finite_loss = true;  ///< whether every such loss is finite
  double counted = 1;       ///< the share of all rows that this mean counts; 1 if it counts none
};

/// Properties of the gradients that an update is about to read.
struct gradient_numbers {
  double norm = 0;      ///< global norm, without the scale
  double scale = 1;     ///< factor of the losses, and so of the gradients
  double measured = 1;  ///< factor of measured values (parameter_info::running): the loss scale
};

/// How much of the exchange overlapped with backward, in seconds since the exchange was made.
struct exchange_times {
  double covered = 0;
  double exposed = 0;
  [[nodiscard]] double hidden() const noexcept { return covered + exposed > 0 ? covered / (covered + exposed) : 0; }
};

/// Bytes of tensors that an exchange has allocated on this rank.
struct exchange_memory {
  std::int64_t parameters = 0;  ///< values that layers read: all, or this rank's slices
  std::int64_t masters = 0;     ///< if the optimizer's type differs from that of layers
  std::int64_t gradients = 0;   ///< permanent ones: all, or this rank's slices
  std::int64_t buffers = 0;     ///< gathered values, gradients in transit, payloads of compressors
  [[nodiscard]] std::int64_t total() const noexcept { return parameters + masters + gradients + buffers; }
  friend bool operator==(exchange_memory const&, exchange_memory const&) = default;
};

}  // namespace trireme
