// Trireme 0.1.0: trireme/testing/gradient_check.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 978ab1be1f07d848ee5c2d7f32e000018c114f86a88563c75313688e042af3d4
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/testing/gradient_check.hpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace trireme::testing {

struct gradient_check_options {
  double step = 1e-5;       ///< parameters move by this to both sides, relative to their size if that is above 1
  double tolerance = 1e-6;  ///< largest difference, relative to the larger of 1e-3 and the gradient
  std::int64_t most = 40;   ///< elements of each tensor that are compared, spread over it; 0 = all
  std::uint64_t seed = 1;   ///< of starting values and dropout
};

/// The result of a check.
struct gradient_report {
  std::int64_t checked = 0;  ///< elements that were compared
  double worst = 0;          ///< largest relative difference
  std::string where;         ///< its position: "name[index]"
  double given = 0;          ///< the gradient there from backward
  double expected = 0;       ///< and from differences of the loss
  double tolerance = 0;
  [[nodiscard]] explicit operator bool() const noexcept { return checked > 0 && worst <= tolerance; }
};

[[nodiscard]] inline std::string to_string(gradient_report const& r) {
  if (r.checked == 0) return "no gradients to compare";
  return text(how_many(r.checked, "element"), ", worst relative difference ", r.worst, " at ", r.where,
              ": backward gives ", r.given, ", differences of the loss ", r.expected);
}

/// Compares one tensor's gradient with central differences of a loss, for losses and kernels of your own.
///
/// @param values    are changed and restored.
/// @param gradient  d loss / d values, of the same size.
/// @param loss      computes the loss from the current values, a function () -> double.
inline void check_gradient(std::string const& name, std::span<double> values, std::span<double const> gradient,
                           std::function<double()> const& loss, gradient_check_options const& options,
                           gradient_report& report) {
  if (values.size() != gradient.size()) {
    throw config_error(text("trireme::testing::check_gradient: \"", name, "\" has ", how_many(values.size(), "value"),
                            " and ", how_many(gradient.size(), "gradient")));
  }
  report.tolerance = options.tolerance;
  auto const size = static_cast<std::int64_t>(values.size());
  auto const count = options.most == 0 ? size : std::min(size, options.most);
  for (std::int64_t k = 0; k < count; ++k) {
    auto const i = static_cast<std::size_t>(k * size / count);
    double const before = values[i];
    double const step = options.step * std::max(1.0, std::abs(before));
    values[i] = before + step;
    double const above = loss();
    values[i] = before - step;
    double const below = loss();
    values[i] = before;
    double const expected = (above - below) / (2 * step);
    double const difference =
        std::abs(gradient[i] - expected) / std::max({1e-3, std::abs(expected), std::abs(gradient[i])});
    ++report.checked;
    if (!(difference <= report.worst) || report.where.empty()) {
      report.worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
      report.where = text(name, "[", i, "]");
      report.given = gradient[i];
      report.expected = expected;
    }
  }
}

/// Compares all gradients of a model of units with central differences of its loss, in double, on one rank, including
/// dropout (its numbers are a function of seed and step). Parameters start from a seed; zeros and ones are changed a
/// little, so that no gradient is trivially right.
///
/// @param batch  samples as the model reads them; a few are enough.
/// @example auto report = testing::check_gradients(nn::mlp{.inputs = 3}, make_samples(x, y));
///          REQUIRE(report) or if (!report) throw error(to_string(report));
template <staged_model Model>
[[nodiscard]] gradient_report check_gradients(Model const& model, samples const& batch,
                                              gradient_check_options const& options = {}) {
  using env = environment<precision::fp64>;
  comm::self_world self;
  staged_engine<env> engine(model);
  basic_exchange<env, comm::self_world, parallel::data, compression::none> exchange(engine.uses(), self, {}, {},
                                                                                    engine.unit_ends());
  exchange.initialise(options.seed);
  std::uint32_t site = 0;
  for (auto const& entry : exchange.plan().entries()) {
    std::uint64_t index = 0;
    for (auto& value : exchange.parameter_values(entry).span())
      value += 0.1 * (static_cast<double>(unit_float(random_block({options.seed, 0}, site, index++, 0)[0])) - 0.5);
    ++site;
  }
  double const weight = 1.0 / static_cast<double>(batch.count());
  auto const run = [&](auto&& ready) { return engine.train(batch, weight, {options.seed, 0}, ready); };
  exchange.begin();
  auto const losses = run([&](int use) { exchange.ready(use); });
  exchange.finish();
  // Backward weighs every row; the loss is the mean over the counted rows.
  double const more = 1 / losses.counted_fraction();
  std::vector<std::vector<double>> gradients(exchange.plan().entries().size());
  for (auto const& segment : exchange.segments()) {
    auto& all = gradients[static_cast<std::size_t>(segment.range.entry)];
    for (auto const each : segment.gradient.terms[0].span()) all.push_back(more * each);
  }
  gradient_report report;
  for (std::size_t e = 0; e < gradients.size(); ++e) {
    auto const& entry = exchange.plan().entries()[e];
    if (entry.info.running > 0) continue;  // a moving average has no gradient
    check_gradient(
        entry.info.name, exchange.parameter_values(entry).span(), gradients[e], [&] { return run([](int) {}).mean(); },
        options, report);
  }
  return report;
}

/// The same for a plain model, whose parameters are in double (a static `value_type`), in its own memory.
template <plain_model Model>
requires(!staged_model<Model>) [[nodiscard]] gradient_report
    check_gradients(Model& model, samples const& batch, gradient_check_options const& options = {}) {
  plain_engine<environment<precision::fp64>, Model> engine(model);
  auto const parameters = engine.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!engine.converts(i)) continue;
    throw config_error(
        text("trireme::testing::check_gradients: \"", parameters[i].name,
             "\" is not double, so differences of the loss would be lost in rounding; check the model with "
             "parameters of double"));
  }
  auto const run = [&] { return engine.train(batch, [](int) {}); };
  auto const loss = [&] { return run().mean(); };
  auto const losses = run();
  // If backward gives the gradients of a sum, the loss is that sum over the counted targets.
  double const counted = losses.counted_fraction() * static_cast<double>(batch.count());
  double const factor = decltype(engine)::sums_gradients ? 1 / counted : 1.0;
  std::vector<std::vector<double>> gradients;
  for (auto const& each : parameters) {
    auto& all = gradients.emplace_back();
    for (auto const one : each.gradient.span()) all.push_back(factor * one);
  }
  gradient_report report;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    check_gradient(parameters[i].name, parameters[i].value.span(), gradients[i], loss, options, report);
  return report;
}

}  // namespace trireme::testing
