#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/text.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/schedules/schedules.hpp"

namespace trireme::parallel {

/// A pipeline whose schedule is chosen at run time, by its name: gpipe, 1f1b, interleaved, zbh1, zbv, dualpipe,
/// dualpipev.
///
/// Errors  config_error when a trainer is made, if no schedule has that name; else as pipeline.
struct any_pipeline {
  using policy_category = slot::parallel;

  std::string schedule = "1f1b";
  int stages = 0;                    ///< 0: the ranks that other axes leave
  int chunks = 0;                    ///< chunks of the model a stage; for interleaved (0: two)
  std::vector<std::int64_t> cuts{};  ///< the first unit of each part but the first; empty: balanced by cost
  friend bool operator==(any_pipeline const&, any_pipeline const&) = default;

  void validate() const {
    expect_number("parallel::any_pipeline", ".stages", stages, not_negative);
    expect_number("parallel::any_pipeline", ".chunks", chunks, not_negative);
  }

  static constexpr std::string_view name = "pipeline";
  static constexpr std::string_view kind = name;
  static constexpr axis_facts facts = pipeline<>::facts;
  [[nodiscard]] constexpr int degree() const noexcept { return stages; }
  using rules = pipeline<>::rules;

  template <class Env, class Comm>
  class instance;
};

[[nodiscard]] inline std::string to_string(any_pipeline const& p) {
  return text("parallel::any_pipeline{.schedule = \"", p.schedule, "\", .stages = ", p.stages, ", .chunks = ", p.chunks,
              "}");
}

/// The units of a stage, under the schedule that the description names.
template <staged_model Model>
[[nodiscard]] stage_assignment assignment_of(any_pipeline const& axis, Model const& model, int stage, int stages) {
  stage_assignment assignment;
  bool const found = schedule::with_named(axis.schedule, [&]<class Schedule>(Schedule const&) {
    auto const chunks = Schedule::chunks != 0 ? Schedule::chunks : axis.chunks;
    assignment =
        assignment_of(pipeline<Schedule>{.stages = stages, .chunks = chunks, .cuts = axis.cuts}, model, stage, stages);
  });
  if (found) return assignment;
  std::string names;
  schedule::for_each_schedule(
      [&](auto const& each) { names += text(names.empty() ? "" : ", ", std::string_view(each.name)); });
  throw config_error(
      text("trireme::parallel::pipeline: there is no schedule \"", axis.schedule, "\"; the schedules are ", names));
}

template <class Env, class Comm>
class any_pipeline::instance : public detail::pipeline_stages<any_pipeline, Env, Comm> {
  using detail::pipeline_stages<any_pipeline, Env, Comm>::pipeline_stages;
};

}  // namespace trireme::parallel
