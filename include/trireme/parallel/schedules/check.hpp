#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/parallel/schedules/simulate.hpp"
#include "trireme/parallel/schedules/step.hpp"

namespace trireme::schedule {

/// A pipeline schedule: its name, the placement of parts on stages, its chunks a stage (0: any number), its requirement
/// on a size (nullptr: met), and each stage's steps.
template <class S>
concept schedule = requires(size const& of, void (*put)(step)) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::where } -> std::convertible_to<placement>;
  { S::chunks } -> std::convertible_to<int>;
  { S::refuses(of) } -> std::convertible_to<char const*>;
  S::steps(of, 0, put);
};

/// The rules of a schedule, in the order in which they are checked: each relies on those before it. `none`: no rule is
/// broken.
enum class rule {
  in_range,
  not_too_many,
  forward_once,
  backward_once,
  backward_after_forward,
  weight_after_input,
  no_deadlock,
  none
};

[[nodiscard]] constexpr std::string_view sentence_of(rule which) noexcept {
  switch (which) {
    case rule::in_range:
      return "every step must name an existing chunk of its stage and a micro-batch that this chunk takes";
    case rule::not_too_many:
      return "a stage has more steps than its chunks and micro-batches require";
    case rule::forward_once:
      return "each chunk must take each of its micro-batches forward exactly once";
    case rule::backward_once:
      return "each chunk must take each of its micro-batches backward exactly once: a full backward, or backward_input "
             "and backward_weight";
    case rule::backward_after_forward:
      return "a backward must come after the forward of its chunk and micro-batch";
    case rule::weight_after_input:
      return "a backward_weight must come after the backward_input of its chunk and micro-batch";
    case rule::no_deadlock:
      return "stages wait for each other for ever, even if sends are buffered";
    case rule::none:
      break;
  }
  return {};
}

/// The first rule that lists break, and where.
struct verdict {
  rule broken = rule::none;
  int stage = 0;
  int index = 0;  ///< of the step in the stage's list
  [[nodiscard]] constexpr bool ok() const noexcept { return broken == rule::none; }
};

namespace detail {

/// What a chunk has done with a micro-batch so far, as bits.
struct pass_record {
  int done = 0;
  static constexpr int forward = 1, input = 2, weight = 4, all = 7;
};

/// Checks a step against what has been done so far, records it, and returns the rule that it breaks.
constexpr rule apply(pass_record& record, work kind) {
  int const adds = kind == work::forward          ? pass_record::forward
                   : kind == work::backward       ? pass_record::input | pass_record::weight
                   : kind == work::backward_input ? pass_record::input
                                                  : pass_record::weight;
  if ((record.done & adds) != 0) return kind == work::forward ? rule::forward_once : rule::backward_once;
  if (kind != work::forward && (record.done & pass_record::forward) == 0) return rule::backward_after_forward;
  if (kind == work::backward_weight && (record.done & pass_record::input) == 0) return rule::weight_after_input;
  record.done |= adds;
  return rule::none;
}

}  // namespace detail

/// Whether lists form a schedule: every micro-batch once each way through every chunk, in an order that can be
/// executed.
template <class Storage>
[[nodiscard]] constexpr verdict find_broken_rule(basic_lists<Storage> const& given) {
  auto const& where = given.where();
  typename Storage::template array<detail::pass_record> records;
  int const cells = where.chunks * where.micro_batches;
  make_room(records, where.stages * cells);
  if (given.overflowed()) return {rule::not_too_many, 0, given.longest()};
  for (int s = 0; s < where.stages; ++s) {
    auto* const own = records.data() + s * cells;
    auto const* const steps = given.of(s);
    for (int i = 0; i < given.count(s); ++i) {
      auto const broken =
          detail::apply(own[steps[i].chunk * where.micro_batches + steps[i].micro_batch], steps[i].kind);
      if (broken != rule::none) return {broken, s, i};
    }
    for (int chunk = 0; chunk < where.chunks; ++chunk) {
      for (int m = 0; m < where.micro_batches; ++m) {
        int const done = own[chunk * where.micro_batches + m].done;
        if (done == detail::pass_record::all || !where.takes(chunk, m)) continue;
        return {(done & detail::pass_record::forward) == 0 ? rule::forward_once : rule::backward_once, s,
                given.count(s)};
      }
    }
  }
  auto const run = simulate(given);
  for (int s = 0; s < where.stages && !run.finished; ++s) {
    if (run.stage(s).done < given.count(s)) return {rule::no_deadlock, s, run.stage(s).done};
  }
  return {};
}

/// The steps of `Schedule`, for a size that it supports; `broken` is set if a step has an invalid stage, chunk or
/// micro-batch (such a step is left out).
template <schedule Schedule, class Storage>
[[nodiscard]] constexpr basic_lists<Storage> list(size const& of, verdict& broken) {
  stage_map const where{of, Schedule::where};
  basic_lists<Storage> out(where);
  for (int s = 0; s < of.stages; ++s) {
    Schedule::steps(of, s, [&](step const& each) {
      bool const there = each.chunk >= 0 && each.chunk < of.chunks && each.micro_batch >= 0 &&
                         each.micro_batch < of.micro_batches && where.takes(each.chunk, each.micro_batch);
      if (there)
        out.add(s, each);
      else if (broken.ok())
        broken = {rule::in_range, s, out.count(s)};
    });
  }
  return out;
}

/// The steps of `Schedule` for a size that is known at run time, checked.
///
/// Errors   config_error if it does not support the size, or its lists break a rule.
template <schedule Schedule>
[[nodiscard]] step_lists make_lists(size of) {
  if (Schedule::chunks != 0) of.chunks = Schedule::chunks;
  auto const given = [&] {
    return text(how_many(of.stages, "stage"), ", ", how_many(of.micro_batches, "micro-batch"), " and ",
                how_many(of.chunks, "chunk"), " a stage");
  };
  if (of.stages < 1 || of.micro_batches < 1 || of.chunks < 1) {
    throw config_error(
        text("trireme::schedule: ", Schedule::name, " was given ", given(), "; each must be at least 1"));
  }
  if (char const* const need = Schedule::refuses(of); need != nullptr) {
    throw config_error(text("trireme::schedule: ", Schedule::name, " ", need, ", but was given ", given()));
  }
  verdict found;
  auto out = list<Schedule, on_heap>(of, found);
  if (found.ok()) found = find_broken_rule(out);
  if (!found.ok()) {
    throw config_error(text("trireme::schedule: ", Schedule::name, " with ", given(), ": ", sentence_of(found.broken),
                            " (stage ", found.stage, ", step ", found.index, ")"));
  }
  return out;
}

namespace detail {

template <class Schedule, int Stages, int MicroBatches, int Chunks>
struct at_compile_time {
  static constexpr size of{Stages, MicroBatches, Chunks};
  static constexpr int most = 3 * Stages * MicroBatches * Chunks;  // of steps, and of messages
  static constexpr bool fits = Schedule::refuses(of) == nullptr;

  static constexpr verdict found = [] {
    verdict out;
    if constexpr (fits) {
      auto const steps = list<Schedule, within<most>>(of, out);
      if (out.ok()) out = find_broken_rule(steps);
    }
    return out;
  }();
};

// A class for each error, as for the trainer's slots; the facts are computed outside it.
template <class Schedule, int Stages, int MicroBatches, int Chunks, class Facts>
struct check_schedule {
  static_assert(Facts::fits,
                "trireme::schedule: this schedule does not support these numbers of stages, micro-batches or chunks");
  // The sentences of sentence_of(): the compiler takes literals alone.
  static_assert(Facts::found.broken != rule::in_range,
                "trireme::schedule: every step must name an existing chunk of its stage and a micro-batch that this "
                "chunk takes [in_range]");
  static_assert(Facts::found.broken != rule::not_too_many,
                "trireme::schedule: a stage has more steps than its chunks and micro-batches require [not_too_many]");
  static_assert(
      Facts::found.broken != rule::forward_once,
      "trireme::schedule: each chunk must take each of its micro-batches forward exactly once [forward_once]");
  static_assert(Facts::found.broken != rule::backward_once,
                "trireme::schedule: each chunk must take each of its micro-batches backward exactly once: a full "
                "backward, or backward_input and backward_weight [backward_once]");
  static_assert(Facts::found.broken != rule::backward_after_forward,
                "trireme::schedule: a backward must come after the forward of its chunk and micro-batch "
                "[backward_after_forward]");
  static_assert(Facts::found.broken != rule::weight_after_input,
                "trireme::schedule: a backward_weight must come after the backward_input of its chunk and micro-batch "
                "[weight_after_input]");
  static_assert(Facts::found.broken != rule::no_deadlock,
                "trireme::schedule: stages wait for each other for ever, even if sends are buffered [no_deadlock]");
};

}  // namespace detail

/// Checks a schedule at compile time: a broken rule gives one error. Write `static_assert(schedule::check<my_schedule,
/// 4, 8>())`.
template <class Schedule, int Stages, int MicroBatches, int Chunks = Schedule::chunks>
constexpr bool check() {
  static_assert(Chunks > 0, "trireme::schedule: set the number of chunks a stage: check<schedule, stages, 8, chunks>");
  using facts = detail::at_compile_time<Schedule, Stages, MicroBatches, Chunks>;
  // Only in a type: if an assertion fails there, this function still returns a constant.
  using said = decltype(sizeof(detail::check_schedule<Schedule, Stages, MicroBatches, Chunks, facts>));
  return said{1} == 1;
}

/// The results of the simulator for a schedule.
struct summary {
  bool finished = false;
  std::int64_t bubble = 0;
  std::int64_t span = 0;
  int peak = 0;  ///< in micro-batches of one chunk
  friend constexpr bool operator==(summary const&, summary const&) = default;
};

/// The summary of a schedule at compile time.
template <schedule Schedule, int Stages, int MicroBatches, int Chunks = Schedule::chunks>
[[nodiscard]] consteval summary measure(costs const& cost = {}, sends semantics = sends::buffered) {
  verdict broken;
  auto const steps = list<Schedule, within<3 * Stages * MicroBatches * Chunks>>({Stages, MicroBatches, Chunks}, broken);
  auto const run = simulate(steps, cost, semantics);
  return {run.finished, run.bubble(), run.span(), run.peak()};
}

}  // namespace trireme::schedule
