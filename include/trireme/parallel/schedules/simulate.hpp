#pragma once

#include <cstdint>

#include "trireme/parallel/schedules/step.hpp"

namespace trireme::schedule {

/// How a send affects the sending stage.
///   rendezvous   one message at a time; a stage waits until the other side receives it
///   grouped      a step's sends and the next step's receives progress together; the stage waits for all of them
///   buffered     messages travel while stages go on; only a receive waits
enum class sends : std::uint8_t { rendezvous, grouped, buffered };

/// The durations of the steps of one chunk, in any unit; a full backward takes backward_input + backward_weight.
struct costs {
  std::int64_t forward = 1;
  std::int64_t backward_input = 1;
  std::int64_t backward_weight = 1;
  std::int64_t hop = 0;  ///< from one stage to another
  /// A forward and a full backward that overlap (F&B). -1: they do not, as in the engine, which runs the two of a pair
  /// one after the other, each as soon as its input has arrived.
  std::int64_t overlapped = -1;

  [[nodiscard]] constexpr std::int64_t of(work kind) const noexcept {
    if (kind == work::forward) return forward;
    if (kind == work::backward_input) return backward_input;
    return kind == work::backward_weight ? backward_weight : backward_input + backward_weight;
  }
  [[nodiscard]] constexpr bool overlaps() const noexcept { return overlapped >= 0; }
};

/// The times of one step of training.
struct step_time {
  std::int64_t start = 0;
  std::int64_t end = 0;
};

/// The results of one stage.
struct stage_time {
  std::int64_t start = 0;  ///< of its first step
  std::int64_t end = 0;    ///< of its last step
  std::int64_t busy = 0;
  int peak = 0;  ///< most activations held at a time, in micro-batches of one chunk
  int done = 0;  ///< steps that it has completed; not all if the schedule deadlocks

  /// Waiting time between its first and its last step.
  [[nodiscard]] constexpr std::int64_t idle() const noexcept { return end - start - busy; }
};

/// The result of simulating a schedule.
template <class Storage>
struct basic_timing {
  typename Storage::template array<step_time> steps;  ///< stage s, step i: at s * longest() + i
  typename Storage::template array<stage_time> stages;
  int stage_count = 0;
  bool finished = false;  ///< false: deadlock

  [[nodiscard]] constexpr stage_time const& stage(int which) const noexcept { return stages.data()[which]; }
  /// The largest idle time of any stage, between its first and its last step.
  [[nodiscard]] constexpr std::int64_t bubble() const noexcept {
    std::int64_t most = 0;
    for (int s = 0; s < stage_count; ++s) most = stage(s).idle() > most ? stage(s).idle() : most;
    return most;
  }
  /// The largest waiting time of any stage, from the first step of all stages to the last one of all: the time that a
  /// training step takes in addition to its work, because no stage begins the next one before all have ended this one.
  [[nodiscard]] constexpr std::int64_t waiting() const noexcept {
    std::int64_t most = 0;
    for (int s = 0; s < stage_count; ++s) most = span() - stage(s).busy > most ? span() - stage(s).busy : most;
    return most;
  }
  /// The most activations that any stage holds, in micro-batches of one chunk.
  [[nodiscard]] constexpr int peak() const noexcept {
    int most = 0;
    for (int s = 0; s < stage_count; ++s) most = stage(s).peak > most ? stage(s).peak : most;
    return most;
  }
  /// From the first step of any stage to the end.
  [[nodiscard]] constexpr std::int64_t span() const noexcept {
    std::int64_t last = 0;
    for (int s = 0; s < stage_count; ++s) last = stage(s).end > last ? stage(s).end : last;
    return last;
  }
};
using timing = basic_timing<on_heap>;

namespace detail {

/// Replays lists: each stage in turn goes on until it has to wait, until none can go on. Written with few statements,
/// because compilers limit their number in a constant expression.
template <class Storage>
class simulator {
  static constexpr std::int64_t never = -1;

 public:
  constexpr simulator(basic_lists<Storage> const& steps, costs const& cost, sends semantics)
      : lists_(steps), cost_(cost), semantics_(semantics) {
    int const values = lists_.where().values();
    make_room(made_, values);
    make_room(offered_, values);
    make_room(asked_, values);
    for (int v = 0; v < values; ++v) made_.data()[v] = offered_.data()[v] = asked_.data()[v] = never;
    make_room(stages_, lists_.stages());
    make_room(out_.steps, lists_.stages() * lists_.longest());
    make_room(out_.stages, lists_.stages());
    out_.stage_count = lists_.stages();
  }

  constexpr basic_timing<Storage> run() {
    int running = lists_.stages();
    for (bool moved = true; moved && running > 0;) {
      moved = false;
      for (int s = 0; s < lists_.stages(); ++s) {
        auto& stage = stages_.data()[s];
        if (stage.over) continue;
        while (advance(s, stage)) moved = true;
        if (stage.over) --running;
      }
    }
    out_.finished = running == 0;
    return out_;
  }

 private:
  struct state {
    std::int64_t clock = 0;
    int next = 0;     // step
    int sending = 0;  // steps before `next` whose results are not sent yet
    int phase = 0;    // rendezvous: how many messages between two steps are done
    int held = 0;
    bool over = false;
  };

  // The messages between two steps, then the step (or the two of a pair). False if the stage must wait or is done.
  constexpr bool advance(int s, state& stage) {
    int const left = lists_.count(s) - stage.next;
    auto const* const steps = lists_.of(s) + stage.next;
    int const group = left > 1 && steps->with_next && cost_.overlaps() ? 2 : left > 0 ? 1 : 0;
    if (semantics_ != sends::buffered && !exchanged(stage, steps, group)) return false;
    auto clock = stage.clock;
    for (auto const* each = steps; each != steps + group; ++each) {
      if (each->input < 0) continue;
      auto const made = made_.data()[each->input];
      if (made == never) return false;
      auto const here = made + (each->from == nobody || semantics_ != sends::buffered ? 0 : cost_.hop);
      clock = here > clock ? here : clock;
    }
    stage.over = group == 0;
    if (!stage.over) take(s, stage, steps, group, clock);
    return !stage.over;
  }

  constexpr void take(int s, state& stage, step const* steps, int group, std::int64_t begin) {
    auto& sum = out_.stages.data()[s];
    auto const length = group == 2 ? cost_.overlapped : cost_.of(steps->kind);
    sum.start = stage.next == 0 ? begin : sum.start;
    sum.end = stage.clock = begin + length;
    sum.busy += length;
    for (int i = 0; i < group; ++i) {
      out_.steps.data()[s * lists_.longest() + stage.next + i] = {begin, sum.end};
      stage.held += steps[i].kind == work::forward;
      if (steps[i].output >= 0) made_.data()[steps[i].output] = sum.end;
    }
    sum.peak = stage.held > sum.peak ? stage.held : sum.peak;
    for (int i = 0; i < group; ++i) {
      stage.held -= steps[i].kind == work::backward || steps[i].kind == work::backward_weight;
    }
    sum.done = stage.next += group;
    stage.sending = group;
  }

  // Rendezvous and grouped: whether all sends of the last step and all receives of the next one are matched.
  constexpr bool exchanged(state& stage, step const* steps, int group) {
    struct {
      int value;
      bool sent;
    } messages[4]{};
    int many = 0;
    for (int i = -stage.sending; i < 0; ++i) {
      if (steps[i].to != nobody) messages[many++] = {steps[i].output, true};
    }
    for (int i = 0; i < group; ++i) {
      if (steps[i].from != nobody) messages[many++] = {steps[i].input, false};
    }
    bool const one_by_one = semantics_ == sends::rendezvous;
    for (int m = stage.phase; m < many; ++m) {
      auto& asked = asked_.data()[messages[m].value];
      auto& offered = offered_.data()[messages[m].value];
      auto& here = messages[m].sent ? offered : asked;
      if (here == never) here = stage.clock;
      if (!one_by_one) continue;
      if (!meet(stage, offered, asked)) return false;
      stage.phase = m + 1;
    }
    if (!one_by_one) {
      for (int m = 0; m < many; ++m) {
        if (offered_.data()[messages[m].value] == never || asked_.data()[messages[m].value] == never) return false;
      }
      for (int m = 0; m < many; ++m) {
        static_cast<void>(meet(stage, offered_.data()[messages[m].value], asked_.data()[messages[m].value]));
      }
    }
    stage.phase = 0;
    stage.sending = 0;
    return true;
  }
  // Both sides go on when both have arrived and the message has travelled.
  constexpr bool meet(state& stage, std::int64_t offered, std::int64_t asked) const {
    if (offered == never || asked == never) return false;
    auto const done = (offered > asked ? offered : asked) + cost_.hop;
    stage.clock = done > stage.clock ? done : stage.clock;
    return true;
  }

  basic_lists<Storage> const& lists_;
  costs cost_;
  sends semantics_;
  typename Storage::template array<std::int64_t> made_;     // when a value was available
  typename Storage::template array<std::int64_t> offered_;  // when its sender began to wait, if it waits
  typename Storage::template array<std::int64_t> asked_;    // when its receiver began to wait
  typename Storage::template array<state> stages_;
  basic_timing<Storage> out_;
};

}  // namespace detail

/// Simulates a schedule: when each step starts and ends, how long each stage idles and what it holds, and whether all
/// stages finish. A pure function; integers only, so that results can be compared exactly with formulas.
template <class Storage>
[[nodiscard]] constexpr basic_timing<Storage> simulate(basic_lists<Storage> const& steps, costs const& cost = {},
                                                       sends semantics = sends::buffered) {
  return detail::simulator<Storage>(steps, cost, semantics).run();
}

}  // namespace trireme::schedule
