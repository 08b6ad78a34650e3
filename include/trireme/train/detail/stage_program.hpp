#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/parallel/schedules/step.hpp"
#include "trireme/parallel/stage_assignment.hpp"

namespace trireme::detail {

/// What one stage receives in a training step, and how many values can be in transit.
struct message_plan {
  schedule::stage_map where;
  std::vector<std::vector<int>> values;  ///< from each stage, in the order in which it sends them
  std::vector<int> room;  ///< most values in transit between this stage and each other one, in each direction

  // An activation is in transit while its sender holds the micro-batch, a gradient while its receiver does.
  message_plan(schedule::step_lists const& lists, int stage, std::vector<int> const& peaks)
      : where(lists.where()), values(peaks.size()), room(peaks.size()) {
    for (int s = 0; s < lists.stages(); ++s) {
      auto const peer = static_cast<std::size_t>(s);
      room[peer] = peaks[peer] + peaks[static_cast<std::size_t>(stage)];
      for (auto const* each = lists.of(s); each != lists.of(s) + lists.count(s); ++each) {
        if (each->to == stage) values[peer].push_back(each->output);
      }
    }
  }
};

/// The step lists of all stages for one number of micro-batches, and the program of one stage that follows from them.
struct stage_program {
  int micro_batches;
  schedule::step_lists lists;
  message_plan message_buffers;
  std::vector<int> passes;  ///< micro-batches that each chunk takes
  int stage;

  stage_program(int number, schedule::step_lists all, int own_stage, std::vector<int> const& peaks)
      : micro_batches(number),
        lists(std::move(all)),
        message_buffers(lists, own_stage, peaks),
        passes(static_cast<std::size_t>(lists.where().chunks)),
        stage(own_stage) {
    for (int i = 0; i < count(); ++i) {
      if (steps()[i].kind == schedule::work::forward) ++passes[static_cast<std::size_t>(steps()[i].chunk)];
    }
  }
  [[nodiscard]] schedule::step const* steps() const noexcept { return lists.of(stage); }
  [[nodiscard]] int count() const noexcept { return lists.count(stage); }
};

/// The programs of one stage, each made when it is first needed.
class stage_programs {
 public:
  explicit stage_programs(parallel::stage_assignment assignment) : assignment_(std::move(assignment)) {}
  [[nodiscard]] parallel::stage_assignment const& assignment() const noexcept { return assignment_; }

  [[nodiscard]] stage_program const& for_training(int micro_batches) {
    for (auto const& each : made_) {
      if (each->micro_batches == micro_batches) return *each;
    }
    auto lists = assignment_.lists(micro_batches);
    auto const peaks = assignment_.peaks(lists);
    made_.push_back(std::make_unique<stage_program>(micro_batches, std::move(lists), assignment_.stage, peaks));
    return *made_.back();
  }

  /// One micro-batch through all parts, forward only.
  [[nodiscard]] stage_program const& for_looking() {
    if (looking_ != nullptr) return *looking_;
    auto where = assignment_.where;
    where.micro_batches = 2;  // the first enters at stage 0, also in schedules where the other enters at the last one
    schedule::step_lists lists(where);
    for (int part = 0; part < where.virtual_stages(); ++part) {
      int const stage = where.stage_of(part, 0);
      for (int c = 0; c < where.chunks; ++c) {
        if (where.virtual_stage(stage, c) == part && where.takes(c, 0)) lists.add(stage, {.chunk = c});
      }
    }
    std::vector<int> const peaks(static_cast<std::size_t>(where.stages), where.chunks);
    looking_ = std::make_unique<stage_program>(1, std::move(lists), assignment_.stage, peaks);
    return *looking_;
  }

 private:
  parallel::stage_assignment assignment_;
  std::vector<std::unique_ptr<stage_program>> made_;
  std::unique_ptr<stage_program> looking_;
};

}  // namespace trireme::detail
