#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/interval.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"

namespace trireme::data {

/// How many samples of each batch a rank gets, where ranks are not equally fast.
///
/// Without it all ranks get the same number. The order of samples and the batches are the same for any shares: shares
/// only move the borders between the ranks' parts of a batch. Gradients and losses are weighted by samples, so a run
/// equals serial training up to rounding.
///
/// Errors   validate() throws config_error for a weight below 1, and for weights that are too large together.
/// @example trainer.fit(data, {.steps = 500, .batch = 96, .shares = {.weights = {2, 1}}});
struct shares {
  std::vector<std::int64_t> weights{};  ///< one for each rank that gets samples, in proportion; empty: equal ones
  /// Steps between measurements, from which the next weights follow, so that all ranks are ready at the same time; 0:
  /// the weights stay.
  std::int64_t measure_every = 0;
  friend bool operator==(shares const&, shares const&) = default;

  /// Whether ranks may get different numbers of samples.
  [[nodiscard]] bool given() const noexcept { return !weights.empty() || measure_every != 0; }

  void validate() const;
  /// Also for the number of ranks that get samples.
  void validate(int ranks) const;
};

/// "2:1"
[[nodiscard]] inline std::string to_string_of_weights(std::span<std::int64_t const> weights) {
  std::string out;
  for (auto const weight : weights) out += text(out.empty() ? "" : ":", weight);
  return out;
}

/// "trireme::data::shares{.weights = {2, 1}}"
[[nodiscard]] inline std::string to_string(shares const& of) {
  std::string out = "trireme::data::shares{";
  if (!of.weights.empty()) {
    out += ".weights = {";
    for (std::size_t i = 0; i < of.weights.size(); ++i) out += text(i == 0 ? "" : ", ", of.weights[i]);
    out += "}";
  }
  if (of.measure_every != 0) out += text(of.weights.empty() ? "" : ", ", ".measure_every = ", of.measure_every);
  return out + "}";
}

inline void shares::validate() const {
  auto const refuse = [](auto const&... parts) { return config_error(text("trireme::data::shares: ", parts...)); };
  constexpr auto limit = std::int64_t{1} << 31;  // so that a product with a number of samples fits
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 1 || weights[i] > limit)
      throw refuse(".weights[", i, "] is ", weights[i], "; it must be from 1 to ", limit);
    sum += weights[i];
    if (sum > limit) throw refuse("the sum of .weights is above ", limit, "; give smaller ones");
  }
  if (measure_every < 0) throw refuse(".measure_every is ", measure_every, "; it must be at least 0");
}

inline void shares::validate(int ranks) const {
  validate();
  if (weights.empty() || weights.size() == static_cast<std::size_t>(ranks)) return;
  auto const count = static_cast<std::int64_t>(weights.size());
  throw config_error(text("trireme::data::shares: ", how_many(count, "weight"), " for ", ranks,
                          agreeing(ranks, " rank that gets", " ranks that get"), " samples; give one for each"));
}

/// The part of `count` items for one of some ranks, in proportion to their weights: it begins where the parts of the
/// ranks before it end. For equal weights it is even_split().
[[nodiscard]] constexpr interval weighted_split(std::int64_t count, std::span<std::int64_t const> weights,
                                                int rank) noexcept {
  std::int64_t sum = 0, before = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (i < static_cast<std::size_t>(rank)) before += weights[i];
    sum += weights[i];
  }
  auto const first = before * count / sum;
  return {first, (before + weights[static_cast<std::size_t>(rank)]) * count / sum - first};
}

/// Weights with which all ranks would need the same time for a batch.
///
/// @param samples  that each rank has computed, and
/// @param times    the time that it needed for them, in any unit. A rank without one of them is taken for an average
///                 one.
/// @param batch    samples: each rank's weight is enough for one, if there are so many.
[[nodiscard]] inline std::vector<std::int64_t> weights_for_equal_times(std::span<std::int64_t const> samples,
                                                                       std::span<std::int64_t const> times,
                                                                       std::int64_t batch) {
  constexpr double whole = 1 << 20;
  std::vector<double> rates(samples.size());
  double sum = 0;
  std::int64_t known = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (samples[i] < 1 || times[i] < 1) continue;
    rates[i] = static_cast<double>(samples[i]) / static_cast<double>(times[i]);
    sum += rates[i];
    ++known;
  }
  if (known == 0) return std::vector<std::int64_t>(samples.size(), 1);
  double const mean = sum / static_cast<double>(known);
  sum += mean * static_cast<double>(static_cast<std::int64_t>(rates.size()) - known);
  // One sample, and a little more, since the weights of slow ranks are raised to it.
  auto const least = static_cast<std::int64_t>(whole / static_cast<double>(batch) * 1.25) + 1;
  std::vector<std::int64_t> weights;
  for (auto const rate : rates) {
    auto const share = (rate > 0 ? rate : mean) / sum;
    weights.push_back(std::max(static_cast<std::int64_t>(whole * share + 0.5), least));
  }
  return weights;
}

}  // namespace trireme::data
