#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/core/arithmetic.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/type_name.hpp"
#include "trireme/parallel/bucket_plan.hpp"
#include "trireme/parallel/same_on_all_ranks.hpp"

namespace trireme::parallel::detail {

// The requirements of an exchange on its arguments and its ranks: config_error if one does not hold.

/// The number of gradients of this size that fill a bucket.
template <class Strategy>
[[nodiscard]] std::int64_t bucket_elements(Strategy const& strategy, std::size_t gradient_bytes) {
  auto const count = static_cast<std::int64_t>(strategy.bucket_bytes) / static_cast<std::int64_t>(gradient_bytes);
  if (count < 1) {
    throw config_error(text("trireme::exchange: bucket_bytes is ", strategy.bucket_bytes,
                            "; it must be at least the size of one gradient"));
  }
  return count;
}

/// Collective. Returns the layout if it is the same on all ranks, as well as strategy and compressor.
/// @param rank  this rank's number in errors.
template <class Comm, class Strategy, class Compressor>
[[nodiscard]] bucket_plan agreed(bucket_plan plan, Comm& world, int rank, Strategy const& strategy,
                                 Compressor const& compressor) {
  expect_exact_arithmetic();
  std::string parameters;
  for (auto const& entry : plan.entries())
    parameters +=
        text('"', entry.info.name, "\" of shape ", to_string(entry.info.extents), entry.frozen ? ", frozen\n" : "\n");
  rank_value const items[] = {{"the parallel strategy", describe(strategy)},
                              {"the compressor", describe(compressor)},
                              {"a parameter", std::move(parameters)},
                              arithmetic_of_rank()};
  expect_same_on_all_ranks(world, "trireme::exchange", rank, items,
                           "use the same parameters in the same order, and the same policies, on every rank");
  return plan;
}

/// A lossy compressor would change a moving average.
template <class Compressor>
void expect_exact_means(bucket_plan const& plan, Compressor const& compressor) {
  if constexpr (lossless_identity<Compressor>) return;
  for (auto const& entry : plan.entries()) {
    if (exactly_equal(entry.info.running, 0)) continue;
    throw config_error(text("trireme::exchange: \"", entry.info.name,
                            "\" is a moving average that its layer measures, which ", describe(compressor),
                            " would change; leave the compressor out"));
  }
}

/// If gradients have memory only while a unit uses them, the units must be known.
template <class Strategy>
void expect_units(Strategy const& strategy, bool known) {
  if (known) return;
  throw config_error(text("trireme::exchange: ", describe(strategy),
                          " allocates gradients unit by unit; pass the end of each unit's uses"));
}

/// Whether these ranks can compute sums in a tree.
/// @param lossless  whether the compressor is lossless; only for the error message.
template <class Strategy>
void expect_tree(Strategy const& strategy, int ranks, bool has_tree, bool lossless) {
  if (!has_tree) {
    throw config_error(text("trireme::exchange: ", describe(strategy), " sums whole gradients in a fixed tree; ",
                            lossless ? "this communicator cannot: use another one"
                                     : "a compressor would change them: leave one of them out"));
  }
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) {
    throw config_error(text("trireme::exchange: ", describe(strategy), " on ", ranks,
                            " ranks: reproducible sums need a power of two of ranks; use another number"));
  }
}

/// Collective. The most micro-batches that a rank runs. A tree needs the same number of logical ones on every rank, and
/// at least one.
template <class Comm>
[[nodiscard]] std::int64_t agreed_rounds(Comm& world, std::int64_t micro_batches, std::int64_t run, bool in_a_tree) {
  std::int64_t most[] = {run, micro_batches, -micro_batches};
  world.all_reduce(tensor_view<std::int64_t>(most, shape{3}), reduction::max{});
  if (!in_a_tree) return most[0];
  if (most[1] != -most[2] || most[1] < 1) {
    throw config_error(text("trireme::exchange: .reproducible with between ", -most[2], " and ", most[1],
                            " micro-batches a rank; every rank needs the same number, at least one, "
                            "including those without samples"));
  }
  return std::max<std::int64_t>(most[0], 1);
}

}  // namespace trireme::parallel::detail
