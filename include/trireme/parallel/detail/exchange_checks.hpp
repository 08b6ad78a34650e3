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
#include "trireme/parallel/agreement.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme::parallel::detail {

// What an exchange expects of what it is made of, and of the ranks that it works with: config_error otherwise.

/// How many gradients of so many bytes fill a bucket.
template <class Strategy>
[[nodiscard]] std::int64_t bucket_elements(Strategy const& strategy, std::size_t gradient_bytes) {
  auto const count = static_cast<std::int64_t>(strategy.bucket_bytes) / static_cast<std::int64_t>(gradient_bytes);
  if (count < 1) {
    throw config_error(text("trireme::exchange: bucket_bytes is ", strategy.bucket_bytes, "; it must hold a gradient"));
  }
  return count;
}

/// Collective. The layout, if it is the same on all ranks, and strategy and compressor are.
/// @param rank  what this rank is called.
template <class Comm, class Strategy, class Compressor>
[[nodiscard]] layout agreed(layout plan, Comm& world, int rank, Strategy const& strategy,
                            Compressor const& compressor) {
  expect_exact_arithmetic();
  std::string parameters;
  for (auto const& entry : plan.entries())
    parameters +=
        text('"', entry.info.name, "\" of shape ", to_string(entry.info.extents), entry.frozen ? ", frozen\n" : "\n");
  stated const items[] = {{"the parallel strategy", describe(strategy)},
                          {"the compressor", describe(compressor)},
                          {"a parameter", std::move(parameters)},
                          stated_arithmetic()};
  expect_agreement(world, "trireme::exchange", rank, items,
                   "bring the same parameters in the same order, and the same policies, on every rank");
  return plan;
}

/// A lossy compressor makes something else of a running mean.
template <class Compressor>
void expect_exact_means(layout const& plan, Compressor const& compressor) {
  if constexpr (lossless_identity<Compressor>) return;
  for (auto const& entry : plan.entries()) {
    if (exactly_equal(entry.info.running, 0)) continue;
    throw config_error(text("trireme::exchange: \"", entry.info.name,
                            "\" is a running mean of what is measured, which ", describe(compressor),
                            " would change; leave the compressor out"));
  }
}

/// Gradients have memory only while a unit uses them: units are known.
template <class Strategy>
void expect_units(Strategy const& strategy, bool known) {
  if (known) return;
  throw config_error(text("trireme::exchange: ", describe(strategy),
                          " gives gradients memory unit by unit; pass where each unit's uses end"));
}

/// Sums in a tree can be formed on these ranks.
/// @param lossless  the compressor, which may be why they cannot.
template <class Strategy>
void expect_tree(Strategy const& strategy, int ranks, bool has_tree, bool lossless) {
  if (!has_tree) {
    throw config_error(
        text("trireme::exchange: ", describe(strategy), " sums whole gradients in a fixed tree, which ",
             lossless ? "this communicator cannot; use another one" : "a compressor changes; leave one of them out"));
  }
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) {
    throw config_error(text("trireme::exchange: ", describe(strategy), " on ", ranks,
                            " ranks: only a power of two of them form the sums of one rank; use another number"));
  }
}

/// Collective. The most micro-batches that a rank runs. A tree wants as many logical ones on every rank, and a round to
/// be sent in.
template <class Comm>
[[nodiscard]] std::int64_t agreed_rounds(Comm& world, std::int64_t micro_batches, std::int64_t run, bool in_a_tree) {
  std::int64_t most[] = {run, micro_batches, -micro_batches};
  world.all_reduce(tensor_view<std::int64_t>(most, shape{3}), reduction::max{});
  if (!in_a_tree) return most[0];
  if (most[1] != -most[2] || most[1] < 1) {
    throw config_error(text("trireme::exchange: .reproducible with from ", -most[2], " to ", most[1],
                            " micro-batches a rank; every rank has as many, at least one, those without samples "
                            "included"));
  }
  return std::max<std::int64_t>(most[0], 1);
}

}  // namespace trireme::parallel::detail
