#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../support/sentence.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/train/make_exchange.hpp"

/// An exchange for parameters in the caller's memory, on any communicator: each case returns its error on this rank, or
/// nothing.
namespace exchange_cases {

using namespace trireme;

struct own_parameters {
  std::vector<float> weight = std::vector<float>(3000, 1.0F);
  std::vector<float> weight_gradient = std::vector<float>(3000);
  std::vector<float> bias = std::vector<float>(5, 2.0F);
  std::vector<float> bias_gradient = std::vector<float>(5);
  std::vector<foreign_parameter<float>> list() {
    return {{"weight", tensor_view{weight}, tensor_view{weight_gradient}},
            {"bias", tensor_view{bias}, tensor_view{bias_gradient}}};
  }
  void gradients(float of_weight, float of_bias) {
    std::fill(weight_gradient.begin(), weight_gradient.end(), of_weight);
    std::fill(bias_gradient.begin(), bias_gradient.end(), of_bias);
  }
};
inline bool all_are(std::vector<float> const& values, double expected) {
  return std::all_of(values.begin(), values.end(),
                     [&](float value) { return std::abs(static_cast<double>(value) - expected) < 1e-5; });
}

/// finish() returns the mean over ranks, and its norm; with weight() and accumulate() any weighted sum.
template <class Comm, class... Policies>
std::string means(Comm& world, Policies... policies) {
  own_parameters mine;
  auto exchange = make_exchange(mine.list(), world, policies...);
  int const ranks = world.size();
  auto const rank = static_cast<float>(world.rank());
  exchange.begin();
  mine.gradients(rank, 1);
  exchange.ready("bias");
  exchange.ready("weight");
  auto const result = exchange.finish(world.rank());
  double const mean = (ranks - 1) / 2.0;
  double const norm = std::sqrt(3000 * mean * mean + 5);
  if (!result.finite || result.votes != ranks * (ranks - 1) / 2) return "the vote is wrong";
  if (std::abs(result.norm - norm) > 1e-5 * norm) return text("the norm is ", result.norm, " instead of ", norm);
  bool const whole = std::is_same_v<decltype(exchange), decltype(make_exchange(mine.list(), world))>;
  if (whole && (!all_are(mine.weight_gradient, mean) || !all_are(mine.bias_gradient, 1))) return "not the mean";

  exchange.publish();
  exchange.begin();  // two micro-batches, of which rank r has 1 + r samples each
  double const samples = 2 * (ranks + ranks * (ranks - 1) / 2.0);
  exchange.weight((1 + world.rank()) / samples);
  mine.gradients(3, 0);
  exchange.accumulate();
  mine.gradients(5, 2);
  exchange.ready(0);
  exchange.ready(1);
  exchange.finish();
  if (whole && (!all_are(mine.weight_gradient, 4) || !all_are(mine.bias_gradient, 1))) return "not the weighted mean";
  return {};
}

/// After each rank has updated what it owns, publish() makes the values of all ranks equal.
template <class Comm, class... Policies>
std::string publishes(Comm& world, Policies... policies) {
  own_parameters mine;
  auto exchange = make_exchange(mine.list(), world, policies...);
  for (int step = 0; step < 2; ++step) {
    exchange.begin();
    mine.gradients(static_cast<float>(2 * world.rank()), 1);
    exchange.ready("weight");
    exchange.ready("bias");
    exchange.finish();
    for (auto const& segment : exchange.segments())
      for (std::int64_t i = 0; i < segment.value.size(); ++i) segment.value[i] -= segment.gradient.terms[0][i];
    exchange.publish();
  }
  if (!all_are(mine.weight, 1 - 2.0 * (world.size() - 1)) || !all_are(mine.bias, 0)) return "not the updated values";
  exchange.verify_replicas();
  return {};
}

/// A non-finite gradient on one rank is known to all.
template <class Comm, class... Policies>
std::string vote_on_numbers(Comm& world, Policies... policies) {
  for (float const bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    own_parameters mine;
    auto exchange = make_exchange(mine.list(), world, policies...);
    exchange.begin();
    mine.gradients(1, 1);
    if (world.rank() == world.size() - 1) mine.weight_gradient[1234] = bad;
    exchange.ready("weight");
    exchange.ready("bias");
    if (exchange.finish().finite) return "one rank's number was not seen";
    exchange.begin();
    mine.gradients(1, 1);
    exchange.ready("weight");
    exchange.ready("bias");
    if (!exchange.finish().finite) return "the next step was not clean";
  }
  return {};
}

/// Different replicas are reported, and broadcast() makes them equal.
template <class Comm>
std::string replicas(Comm& world) {
  own_parameters mine;
  bool const differs = world.rank() == world.size() - 1;
  auto const expected =
      world.size() == 1
          ? std::string()
          : text("trireme::exchange: the parameters of rank ", world.size() - 1, " differ from those of rank 0; start ",
                 "every rank from the same values: world.broadcast(values, 0) gives it those of rank 0");
  mine.weight[7] = differs ? 5 : 1;
  auto const at_start = sentence_of<config_error>([&] { static_cast<void>(make_exchange(mine.list(), world)); });
  if (at_start != expected) return "sentence at the start: " + at_start;
  mine.weight[7] = 1;
  auto exchange = make_exchange(mine.list(), world);
  mine.weight[7] = differs ? 5 : 1;
  auto const later = sentence_of<config_error>([&] { exchange.verify_replicas(); });
  if (later != expected) return "sentence: " + later;
  exchange.broadcast(world.size() - 1);
  exchange.verify_replicas();
  return mine.weight[7] == 5 ? std::string() : "not the root's values";
}

/// The error of a lossy compressor is within the bound of its method: the length of the error is at most `bound` times
/// the mean of the lengths of the ranks' gradients. This also holds if the ranks divide the sums.
template <class Comm, class... Policies>
std::string stays_near(Comm& world, double bound, Policies... policies) {
  std::int64_t const rows = 60, columns = 50;
  auto const of = [&](int rank, int step, std::int64_t i) {  // of ranks' matrices of rank 1
    auto const seed = static_cast<std::uint64_t>(100 * rank + step);
    auto const number = [](std::uint64_t bits) { return static_cast<double>(mix(bits) >> 40) * 0x1p-23 - 1; };
    return number(mix(seed) + static_cast<std::uint64_t>(i / columns)) *
           number(mix(seed + 50) + static_cast<std::uint64_t>(i % columns));
  };
  std::vector<float> values(static_cast<std::size_t>(rows * columns)), gradients(values.size());
  auto exchange =
      make_exchange(std::vector{foreign_parameter<float>{"matrix", tensor_view<float>(values.data(), {rows, columns}),
                                                         tensor_view<float>(gradients.data(), {rows, columns})}},
                    world, policies...);
  for (int step = 0; step < 3; ++step) {
    exchange.begin();
    for (std::int64_t i = 0; i < rows * columns; ++i)
      gradients[static_cast<std::size_t>(i)] = static_cast<float>(of(world.rank(), step, i));
    exchange.ready("matrix");
    exchange.finish();
    double sums[3]{};  // of squares of errors and of means; elements
    for (auto const& segment : exchange.segments()) {
      for (std::int64_t i = 0; i < segment.range.count; ++i) {
        double mean = 0;
        for (int rank = 0; rank < world.size(); ++rank)
          mean += of(rank, step, segment.range.in_entry + i) / world.size();
        auto const error = static_cast<double>(segment.gradient.terms[0][i]) - mean;
        sums[0] += error * error;
        sums[1] += mean * mean;
        sums[2] += 1;
      }
    }
    exchange.publish();
    world.all_reduce(tensor_view<double>(sums, shape{3}), reduction::sum{});
    double const copies = sums[2] / static_cast<double>(rows * columns);
    double lengths = 0;
    for (int rank = 0; rank < world.size(); ++rank) {
      double squares = 0;
      for (std::int64_t i = 0; i < rows * columns; ++i) squares += of(rank, step, i) * of(rank, step, i);
      lengths += std::sqrt(squares) / world.size();
    }
    auto const error = std::sqrt(sums[0] / copies);
    if (!(sums[1] > 0) || copies != std::round(copies)) return "not every element was compared";
    if (!(error <= bound * lengths)) return text("step ", step, ": off by ", error, " of ", lengths);
  }
  return {};
}

/// Gradients in their buckets, together with others that are copied there; if a strategy does not support this, they
/// are copied as well.
template <class Comm, class... Policies>
std::string in_buckets(Comm& world, bool has_memory, Policies... policies) {
  own_parameters mine;
  auto exchange = make_exchange(mine.list(), world, policies...);
  auto const memory = exchange.gradient_memory(0);
  if (memory.empty() == has_memory) return "there is memory where none should be, or none where there should be";
  auto const place = has_memory ? memory : tensor_view{mine.weight_gradient};
  std::int64_t const only[] = {0};
  for (int step = 1; step < 4; ++step) {
    for (auto& each : place.span()) each = static_cast<float>(world.rank() * step);  // before begin(), and it counts
    std::fill(mine.bias_gradient.begin(), mine.bias_gradient.end(), static_cast<float>(step));
    exchange.begin({.places = only});
    exchange.gradient_at(0, place);
    exchange.ready("bias");
    exchange.ready("weight");
    auto const result = exchange.finish();
    double const mean = step * (world.size() - 1) / 2.0;
    double const norm = std::sqrt(3000 * mean * mean + 5.0 * step * step);
    if (std::abs(result.norm - norm) > 1e-5 * norm) return text("the norm is ", result.norm, " instead of ", norm);
    exchange.publish();
    if (!has_memory) continue;
    if (!all_are({memory.span().begin(), memory.span().end()}, mean)) return "not the mean in the bucket";
    if (!all_are(mine.bias_gradient, step)) return "not the mean beside it";
  }
  exchange.begin(0);  // without a gradient of this rank, what is in the bucket does not count
  if (exchange.finish().norm != 0) return "an old gradient counts";
  return {};
}

template <class Comm>
std::vector<std::string> all(Comm& world) {
  parallel::zero<1> const zero{.bucket_bytes = 4096};
  parallel::zero<2> const second{.bucket_bytes = 4096};
  compression::top_k const everything{.ratio = 1};
  return {means(world),
          means(world, zero),
          means(world, everything),
          means(world, everything, zero),
          means(world, second),
          means(world, everything, second),
          publishes(world),
          publishes(world, zero),
          publishes(world, zero, compression::cast<bf16>{}),
          publishes(world, second),
          publishes(world, second, compression::cast<bf16>{}),
          publishes(world, second, everything),
          vote_on_numbers(world),
          vote_on_numbers(world, zero),
          vote_on_numbers(world, second),
          vote_on_numbers(world, second, compression::top_k{}),
          vote_on_numbers(world, zero, compression::power_sgd{}),
          stays_near(world, 1e-6),
          stays_near(world, 1e-6, second),
          stays_near(world, 1e-6, everything),
          stays_near(world, 1e-6, zero, everything),
          stays_near(world, 0x1p-8, compression::cast<bf16>{}),
          stays_near(world, 0x1p-8, zero, compression::cast<bf16>{}),
          stays_near(world, 0x1p-8, second, compression::cast<bf16>{}),
          stays_near(world, std::sqrt(0.7), compression::top_k{.ratio = 0.3F}),
          stays_near(world, std::sqrt(0.7), zero, compression::top_k{.ratio = 0.3F}),
          stays_near(world, 1e-5, compression::power_sgd{.rank = 4}),  // the mean has no higher rank
          stays_near(world, 1e-5, zero, compression::power_sgd{.rank = 4}),
          in_buckets(world, true, parallel::data{.bucket_bytes = 4096}),
          in_buckets(world, false, zero),
          in_buckets(world, false, everything),
          replicas(world)};
}

}  // namespace exchange_cases
