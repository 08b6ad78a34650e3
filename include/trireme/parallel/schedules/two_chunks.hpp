#pragma once

#include <string_view>

#include "trireme/parallel/schedules/step.hpp"

namespace trireme::schedule {

namespace detail {

/// Emits steps of two chunks, and counts the micro-batches of each kind.
template <class Emit>
class two_chunk_writer {
 public:
  /// Chunk c takes the micro-batches from first_of_second * c on. Steps of micro-batches past the last are left out.
  constexpr two_chunk_writer(Emit& put, int micro_batches, int first_of_second = 0)
      : emit_(put), micro_batches_(micro_batches), first_of_second_(first_of_second) {}

  constexpr void forward(int chunk) { put(work::forward, chunk, forwards[chunk]++); }
  constexpr void backward(int chunk) {
    put(work::backward, chunk, backwards[chunk]++);
    ++weights[chunk];
  }
  constexpr void backward_input(int chunk) { put(work::backward_input, chunk, backwards[chunk]++); }
  constexpr void backward_weight(int chunk) { put(work::backward_weight, chunk, weights[chunk]++); }
  /// A forward and a backward that may overlap.
  constexpr void both(int forward_chunk, int backward_chunk) {
    put(work::forward, forward_chunk, forwards[forward_chunk]++, true);
    backward(backward_chunk);
  }

  int forwards[2] = {0, 0};
  int backwards[2] = {0, 0};
  int weights[2] = {0, 0};

 private:
  constexpr void put(work kind, int chunk, int nth, bool with_next = false) {
    int const micro_batch = first_of_second_ * chunk + nth;
    if (micro_batch >= micro_batches_) return;
    emit_(step{.kind = kind, .with_next = with_next, .chunk = chunk, .micro_batch = micro_batch});
  }

  Emit& emit_;
  int micro_batches_;
  int first_of_second_;
};

/// The phases that DualPipe and its V form share.
///
/// @param half    stages from the end to the turn (or the meeting)    @param place   index of this stage among them
/// @param each    micro-batches that each chunk takes                 @param near    the chunk filled first at this end
template <class Emit>
constexpr void dual_pipe_steps(two_chunk_writer<Emit>& out, int half, int place, int each, int near) {
  int const far = 1 - near;
  int const to_turn = half - place - 1;
  for (int i = 0; i < 2 * to_turn; ++i) out.forward(near);
  for (int i = 0; i <= place; ++i) {
    out.forward(near);
    out.forward(far);
  }
  for (int i = 0; i < to_turn; ++i) {
    out.backward_input(far);
    out.backward_weight(far);
    out.forward(far);
  }
  for (int i = 0; i < each - 2 * half + place + 1; ++i) {
    if (i == 0 && to_turn == 0) {  // at the turn, running the first pair separately leaves less idle time
      out.forward(near);
      out.backward(far);
    } else {
      out.both(near, far);
    }
    out.both(far, near);
  }
  for (int i = 0; i < to_turn; ++i) {
    out.backward(far);
    out.both(far, near);
  }
  // The last backwards of both chunks in turn; the second half of them postpones its weight gradients.
  for (int i = 0; i < 2 * (place + 1); ++i) {
    int const chunk = i % 2 == 0 ? far : near;
    i <= place ? out.backward(chunk) : out.backward_input(chunk);
  }
  auto const postponed = [&](int nth) { out.backward_weight(nth <= place && (place + 1 + nth) % 2 == 0 ? far : near); };
  for (int i = 0; i < to_turn; ++i) {
    postponed(i);
    out.backward_input(near);
  }
  for (int i = to_turn; i < half; ++i) postponed(i);
}

}  // namespace detail

/// Two chunks a stage, down and back, and backwards in halves: no stage ever waits if F = B-W = W.
///
/// Bubble   0 if F = B-W = W and m >= 2p-1. The trainer's steps do not overlap, so its stages also wait (p-1)F of a
///          chunk before and after their own steps.   Holds    min(p, m) micro-batches; the first and the last part are
///          on stage 0.
/// Method   ZB-V of [Qi et al., "Pipeline Parallelism with Controllable Memory", 2024].
struct zb_v {
  static constexpr std::string_view name = "zbv";
  static constexpr placement where = placement::vee;
  static constexpr int chunks = 2;
  static constexpr char const* refuses(size const&) { return nullptr; }
  static constexpr void steps(size const& of, int stage, auto&& put) {
    int const to_turn = of.stages - stage;
    // The pattern is that of a full pipeline, without the micro-batches that do not exist.
    int const full = of.micro_batches < 2 * of.stages - 1 ? 2 * of.stages - 1 : of.micro_batches;
    detail::two_chunk_writer out(put, of.micro_batches);
    auto const backward = [&](int chunk) {
      out.backward_input(chunk);
      out.backward_weight(chunk);
    };
    for (int i = 0; i < 2 * to_turn - 1; ++i) out.forward(0);
    for (int i = 0; i < stage; ++i) {
      out.forward(1);
      out.forward(0);
    }
    for (int i = 0; i < to_turn; ++i) {
      out.forward(1);
      backward(1);
    }
    while (out.forwards[1] < full) {
      if (out.forwards[0] < full) out.forward(0);
      backward(0);
      out.forward(1);
      backward(1);
    }
    for (int i = 0; i < stage; ++i) {
      out.backward_input(0);
      out.backward_input(1);
    }
    for (int i = 0; i < to_turn; ++i) {
      out.backward_input(0);
      out.backward_weight(0);
    }
    while (out.weights[1] < full) out.backward_weight(1);
    while (out.weights[0] < full) out.backward_weight(0);
  }
};

/// Micro-batches enter at both ends: each stage has two parts of the model, and each part is on two stages, so that
/// forwards of one direction overlap with backwards of the other.
///
/// Bubble   (p/2-1)(F+B-2W) if F = B-W >= W and the two of a pair run one after the other, as in the engine; if they
///          overlap, (p/2-1)(F&B+B-3W) if also F&B = F+B, and no more than that if B-W > F or F&B < F+B.
///          Holds    p+1 micro-batches.   Bytes    parameters twice.
/// Method   [DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024].
struct dual_pipe {
  static constexpr std::string_view name = "dualpipe";
  static constexpr placement where = placement::both_ways;
  static constexpr int chunks = 2;
  static constexpr char const* refuses(size const& of) {
    if (of.stages % 2 != 0) return "needs an even number of stages";
    if (of.micro_batches % 2 != 0) return "needs an even number of micro-batches";
    return of.micro_batches < 2 * of.stages ? "needs at least two micro-batches a stage" : nullptr;
  }
  static constexpr void steps(size const& of, int stage, auto&& put) {
    bool const second = stage >= of.stages / 2;
    detail::two_chunk_writer out(put, of.micro_batches, of.micro_batches / 2);
    detail::dual_pipe_steps(out, of.stages / 2, second ? of.stages - 1 - stage : stage, of.micro_batches / 2,
                            second ? 1 : 0);
  }
};

/// DualPipe folded in the middle: half the stages, each part on one of them.
///
/// Bubble   (p-1)(F+B-2W), or (p-1)(F&B+B-3W), for p stages, F and B of a chunk, under the conditions of dual_pipe.
///          Holds    2p+1 chunks of micro-batches, each half a stage; the first and the last part are on stage 0.
/// Method   [Qi et al., "DualPipe could be better without the Dual", 2025].
struct dual_pipe_v {
  static constexpr std::string_view name = "dualpipev";
  static constexpr placement where = placement::vee;
  static constexpr int chunks = 2;
  static constexpr char const* refuses(size const& of) {
    return of.micro_batches < 2 * of.stages ? "needs at least two micro-batches a stage" : nullptr;
  }
  static constexpr void steps(size const& of, int stage, auto&& put) {
    detail::two_chunk_writer out(put, of.micro_batches);
    detail::dual_pipe_steps(out, of.stages, stage, of.micro_batches, 0);
  }
};

}  // namespace trireme::schedule
