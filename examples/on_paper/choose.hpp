#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "layouts.hpp"

// Which strategy is quickest for a model, a number of ranks and a network, according to plans.
namespace on_paper {

/// Seconds of a step if half of the sending is hidden behind computing.
[[nodiscard]] inline double estimate(row const& it) { return (it.at_best + it.at_worst) / 2; }

/// Plans every layout of a GPT on so many ranks, the quickest first: ZeRO at stages 0, 1 and 3; a pipeline of up to 8
/// stages (1F1B); tensor within a machine, with sequence. Layouts that need more memory than a rank has are left out.
[[nodiscard]] inline std::vector<row> layouts_that_fit(std::string const& name, nn::gpt const& model, int ranks,
                                                       std::int64_t samples, double outside) {
  std::vector<row> all;
  auto const add = [&](layout const& on) {
    if (on.replicas() < 1 || samples % on.replicas() != 0) return;
    if (on.stages > 1 && samples / on.replicas() < 2 * on.stages) return;  // mostly bubble
    auto it = row_of(name, model, on, samples, outside);
    if (it.fits()) all.push_back(std::move(it));
  };
  add({.ranks = ranks, .zero = 0});
  for (int const tensor : {1, 2, 4, 8}) {
    if (tensor > ranks) continue;
    for (int const stages : {1, 2, 4, 8}) {
      if (tensor * stages <= ranks) add({.ranks = ranks, .stages = stages, .tensor = tensor});
    }
    add({.ranks = ranks, .zero = 3, .tensor = tensor});
  }
  std::ranges::stable_sort(all, {}, estimate);
  return all;
}

[[nodiscard]] inline std::string strategy_of(layout const& on) {
  return on.zero == 0 ? fmt::format("data={}", on.ranks) : on.name();
}

/// The table of docs/start/compare_strategies.md.
/// @param only  the rows of this model, without the head of the table; empty: all.
[[nodiscard]] inline std::string table_of_choices(std::string_view only = {}) {
  constexpr nn::gpt gpt2{.vocabulary = 50304, .context = 1024, .layers = 12, .heads = 12, .channels = 768};
  constexpr nn::gpt medium{.vocabulary = 50304, .context = 2048, .layers = 24, .heads = 16, .channels = 2048};
  struct size {
    char const* name;
    nn::gpt const& model;
    std::int64_t samples;
  };
  size const sizes[]{{"124M", gpt2, 512}, {"1.3B", medium, 1024}, {"7B", small, 1024}, {"70B", large, 1024}};
  struct network {
    char const* name;
    double rate;
  };
  network const networks[]{{"400 Gbit/s a rank", 50e9}, {"25 Gbit/s a rank", 3.125e9}};
  std::string out;
  if (only.empty()) {
    out = "| parameters | ranks | network | quickest | s a step | GB of 80 | next |\n|---|---|---|---|---|---|---|\n";
  }
  for (auto const& each : sizes) {
    if (!only.empty() && only != each.name) continue;
    for (int const ranks : {8, 64, 512}) {
      for (auto const& net : networks) {
        bool const one_machine = ranks <= ranks_of_a_machine;
        if (one_machine && &net != networks) continue;
        auto const found = layouts_that_fit(each.name, each.model, ranks, each.samples, net.rate);
        auto const* const where = one_machine ? "one machine" : net.name;
        if (found.empty()) {
          out += fmt::format("| {} | {} | {} | none fits | | | |\n", each.name, ranks, where);
          continue;
        }
        auto const& first = found.front();
        out += fmt::format("| {} | {} | {} | `{}` | {:.3g} | {:.0f} | {} |\n", each.name, ranks, where,
                           strategy_of(first.on), estimate(first), 1e-9 * static_cast<double>(first.memory.total()),
                           found.size() < 2 ? std::string("none fits")
                                            : fmt::format("`{}` {:.3g}", strategy_of(found[1].on), estimate(found[1])));
      }
    }
  }
  return out;
}

}  // namespace on_paper
