#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/data/model_files.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/parallel/same_on_all_ranks.hpp"

namespace trireme::detail {

// Checks of a run's arguments; each throws config_error.

/// The number and form of a dataset's samples, what else sets their order, and the files that a model needs with it.
template <class Data, class Locality>
[[nodiscard]] std::string form_of(Data const& data, Locality const& locality) {
  std::string files;
  for (auto const& each : data::model_files_of(data)) {
    sha256 hash;
    hash.update(std::as_bytes(std::span(each.content)));
    files += text(", with a ", each.name, " of the SHA-256 ", hash.hexadecimal().substr(0, 12), "...");
  }
  auto const epoch = data::detail::epoch_size(data);
  return text(how_many(data.size(), "sample"), " of ", name_of(data.input_type()), " ",
              to_string(shape(data.input_shape())), " and ", name_of(data.target_type()), " ",
              to_string(shape(data.target_shape())), locality ? text(" in ", to_string(*locality)) : "",
              epoch != data.size() ? text(", in epochs of ", epoch) : "", files);
}

/// A precision that rounds products to TF32 needs products that can, and that are the engine's.
/// @param able  whether those of the memory space can.   @param staged  whether the model is one of units.
inline void expect_tf32_products(std::string const& precision, bool able, bool staged) {
  if (!able)
    throw config_error(text("trireme::trainer: ", precision,
                            " is for trainers in CUDA memory, and this one is in another; leave .tf32_products out"));
  if (!staged)
    throw config_error(text("trireme::trainer: a plain model computes its products itself, and ", precision,
                            " does not change them; open a scope of ops::tf32_products in its forward and backward, "
                            "or describe the model in units"));
}

/// An epoch that has begun must be continued with the same dataset.
/// @param before  form_of() that dataset; empty: not known.
template <class Position>
void expect_same_data(std::string const& before, std::string const& now, Position const& at) {
  if (at.position == 0 || before.empty() || before == now) return;
  throw config_error(text("trireme::trainer: fit() on ", now, ", but the current epoch is of ", before, ", after ",
                          at.position,
                          " of them: some samples would be used twice and others never; "
                          "pass that dataset, or call start_epoch() first to skip the rest of that epoch"));
}

/// Collective. Checks that fit() was called on every rank with the same numbers and on the same number and form of
/// samples.
/// @param taken  steps before this call.
template <class Comm, class Data, class Options>
void expect_same_schedule(Comm& world, Data const& data, Options const& options, std::int64_t taken) {
  parallel::rank_value const items[] = {
      {"the dataset", form_of(data, options.locality)},  {".batch", text(options.batch)},
      {".micro_batches", text(options.micro_batches)},   {".steps", text(options.steps)},
      {".stop_after", text(options.stop_after)},         {".check_every", text(options.check_every)},
      {".bad_samples", text(options.bad_samples)},       {".shares", to_string(options.shares)},
      {"the number of steps taken before", text(taken)}, parallel::arithmetic_of_rank()};
  parallel::expect_same_on_all_ranks(world, "trireme::trainer: fit()", world.rank(), items,
                                     "call it with the same arguments on every rank");
}

/// Checks that fit() has a step to take, or that a checkpoint just loaded is at the end of the schedule.
/// @param last    the step to train to.
/// @param loaded  the step of the last loaded checkpoint, or -1.
template <class Options>
void expect_steps(Options const& options, std::int64_t last, std::int64_t taken, std::int64_t loaded) {
  if (options.steps < 1) {
    throw config_error(text("trireme::trainer: fit() with .steps = ", options.steps, "; say how many steps to train"));
  }
  expect_number("trainer: fit()", ".check_every", options.check_every, not_negative);
  expect_number("trainer: fit()", ".stop_after", options.stop_after, {.low = -1});
  expect_number("trainer: fit()", ".workers", options.workers, not_negative);
  expect_number("trainer: fit()", ".bad_samples", options.bad_samples, not_negative);
  if (taken < last || taken == loaded) return;
  throw config_error(text("trireme::trainer: fit() to step ", last, " takes no step after the ", taken,
                          " that have been taken: .steps and .stop_after count from the very first step; "
                          "raise them, or call initialise() to start over"));
}

}  // namespace trireme::detail
