#pragma once

#include <string_view>

#include "trireme/parallel/schedules/step.hpp"

namespace trireme::schedule {

// A schedule is a type with a `name`, a placement `where`, its `chunks` a stage (0: any number), `refuses(size)`, which
// returns its requirement if the size does not meet it (else nullptr), and `steps(size, stage, emit)`, which calls
// emit(step) for each step of a stage in order. They are pure functions: the same code makes lists at compile time and
// at run time.

/// All forwards, then all backwards.
///
/// Bubble   (p-1)(F+B) for p stages.   Holds    all m micro-batches.
/// Method   [Huang et al., "GPipe", 2019], backwards in the order of the forwards.
struct gpipe {
  static constexpr std::string_view name = "gpipe";
  static constexpr placement where = placement::straight;
  static constexpr int chunks = 1;
  static constexpr char const* refuses(size const&) { return nullptr; }
  static constexpr void steps(size const& of, int /*stage*/, auto&& put) {
    for (int m = 0; m < of.micro_batches; ++m) put(step{.kind = work::forward, .micro_batch = m});
    for (int m = 0; m < of.micro_batches; ++m) put(step{.kind = work::backward, .micro_batch = m});
  }
};

/// One forward, one backward in turn, once the pipeline is full.
///
/// Bubble   (p-1)(F+B).   Holds    min(p, m) micro-batches.
/// Method   [Narayanan et al., "PipeDream", 2019; flushed each step as in "Memory-Efficient Pipeline-Parallel DNN
///          Training", 2021].
struct one_f_one_b {
  static constexpr std::string_view name = "1f1b";
  static constexpr placement where = placement::straight;
  static constexpr int chunks = 1;
  static constexpr char const* refuses(size const&) { return nullptr; }
  static constexpr void steps(size const& of, int stage, auto&& put) {
    int const ahead = of.stages - 1 - stage;
    for (int k = 0; k < of.micro_batches + ahead; ++k) {
      if (k < of.micro_batches) put(step{.kind = work::forward, .micro_batch = k});
      if (k >= ahead) put(step{.kind = work::backward, .micro_batch = k - ahead});
    }
  }
};

/// One forward, one backward in turn, over several chunks a stage: the pipeline fills sooner.
///
/// Bubble   (p-1)(F+B)/v for v chunks, F and B of a whole stage.   Holds    p + (p-1)/v micro-batches, or all m.
/// Method   [Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021].
struct interleaved {
  static constexpr std::string_view name = "interleaved";
  static constexpr placement where = placement::straight;
  static constexpr int chunks = 0;
  static constexpr char const* refuses(size const& of) {
    return of.micro_batches % of.stages == 0 ? nullptr : "needs micro-batches that are a multiple of the stages";
  }
  static constexpr void steps(size const& of, int stage, auto&& put) {
    int const group = of.stages * of.chunks;  // as many micro-batches as stages take a chunk, one after the other
    int const total = of.micro_batches * of.chunks;
    int const ahead = (of.stages - 1 - stage) * 2 + (of.chunks - 1) * of.stages;
    for (int k = 0; k < total + ahead; ++k) {
      if (k < total) {
        put(step{.kind = work::forward,
                 .chunk = k % group / of.stages,
                 .micro_batch = k / group * of.stages + k % of.stages});
      }
      if (int const b = k - ahead; b >= 0) {
        put(step{.kind = work::backward,
                 .chunk = of.chunks - 1 - b % group / of.stages,
                 .micro_batch = b / group * of.stages + b % of.stages});
      }
    }
  }
};

/// 1F1B whose weight gradients fill the gaps: a stage postpones as many of them as it may keep activations for.
///
/// Bubble   (p-1)(F+B-2W) if m >= p and B-W >= W (less of it is filled otherwise).   Holds    min(p, m) micro-batches.
/// Method   ZB-H1 of [Qi et al., "Zero Bubble Pipeline Parallelism", 2023].
struct zb_h1 {
  static constexpr std::string_view name = "zbh1";
  static constexpr placement where = placement::straight;
  static constexpr int chunks = 1;
  static constexpr char const* refuses(size const&) { return nullptr; }
  static constexpr void steps(size const& of, int stage, auto&& put) {
    int const ahead = of.stages - 1 - stage;
    int const behind = stage;
    for (int k = 0; k < of.micro_batches + ahead + behind; ++k) {
      int const b = k - ahead;
      if (k < of.micro_batches) put(step{.kind = work::forward, .micro_batch = k});
      if (b >= 0 && b < of.micro_batches) put(step{.kind = work::backward_input, .micro_batch = b});
      if (b >= behind) put(step{.kind = work::backward_weight, .micro_batch = b - behind});
    }
  }
};

}  // namespace trireme::schedule
