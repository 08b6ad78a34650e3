#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/parallel/agreement.hpp"

namespace trireme::detail {

// What a trainer expects of the arguments of a run: config_error otherwise.

/// How many samples of which form a dataset has.
template <class Data>
[[nodiscard]] std::string form_of(Data const& data) {
  return text(how_many(data.size(), "sample"), " of ", name_of(data.input_type()), " ",
              to_string(shape(data.input_shape())), " and ", name_of(data.target_type()), " ",
              to_string(shape(data.target_shape())));
}

/// An epoch that is under way goes on with the dataset that it began with.
/// @param before  form_of() that one; empty: not known.
template <class Position>
void expect_same_data(std::string const& before, std::string const& now, Position const& at) {
  if (at.position == 0 || before.empty() || before == now) return;
  throw config_error(text("trireme::trainer: fit() on ", now, ", but the run stands within an epoch of ", before,
                          ", after ", at.position,
                          " of them: some would come twice and others never; give it that "
                          "dataset, or call start_epoch() first to leave the rest of that epoch out"));
}

/// Collective. fit() was called with the same numbers on every rank, on as many samples of one form.
/// @param taken  steps before this call.
template <class Comm, class Data, class Options>
void expect_same_schedule(Comm& world, Data const& data, Options const& options, std::int64_t taken) {
  parallel::stated const items[] = {{"the dataset", form_of(data)},
                                    {".batch", text(options.batch)},
                                    {".micro_batches", text(options.micro_batches)},
                                    {".steps", text(options.steps)},
                                    {".stop_after", text(options.stop_after)},
                                    {".check_every", text(options.check_every)},
                                    {"the number of steps taken before", text(taken)},
                                    parallel::stated_arithmetic()};
  parallel::expect_agreement(world, "trireme::trainer: fit()", world.rank(), items,
                             "call it with the same arguments on every rank");
}

/// fit() has something to do, unless a checkpoint that has just been loaded stands at the end of the schedule.
/// @param last    the step to train to.
/// @param loaded  the step at which the last checkpoint stood, or -1.
template <class Options>
void expect_steps(Options const& options, std::int64_t last, std::int64_t taken, std::int64_t loaded) {
  if (options.steps < 1) {
    throw config_error(text("trireme::trainer: fit() with .steps = ", options.steps, "; say how many steps to train"));
  }
  expect_number("trainer: fit()", ".check_every", options.check_every, not_negative);
  expect_number("trainer: fit()", ".stop_after", options.stop_after, {.low = -1});
  if (taken < last || taken == loaded) return;
  throw config_error(text("trireme::trainer: fit() to step ", last, " takes no step after the ", taken,
                          " that have been taken: .steps and .stop_after count from the first one ever; give it more, "
                          "or call initialise() to start over"));
}

}  // namespace trireme::detail
