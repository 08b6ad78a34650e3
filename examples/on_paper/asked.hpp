#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/core.h>

#include "choose.hpp"

// Plans for the model, the ranks and the network of a command line.
namespace on_paper {

inline constexpr char const* usage_of_plans =
    R"(on_paper --plan [options]

Which strategy suits a GPT on ranks that need not exist: plans every layout of data, zero<1>, zero<3>, a pipeline of up
to 8 stages (1F1B) and tensor within a machine (with sequence), in bfloat16 with AdamW, one sample a micro-batch, and
prints those that fit into a rank's memory, the quickest first: seconds of a step if all sending is hidden behind
computing and if none is, and what a rank holds, sends and waits. With --parallel: that layout alone, fitting or not.

  --model M         124M | 1.3B | 7B | 70B (124M)
  --layers N        of a model of your own, as are the next four; what is not given is M's
  --heads N
  --channels N
  --vocabulary N
  --context N       tokens of a sample
  --ranks N         eight of them a machine (64)
  --samples N       of a step, over all ranks (1024)
  --network G       Gbit/s that a rank sends to other machines (400)
  --parallel P      zero1=8,pipeline=4:1f1b,tensor=2 for example: data, zero1, zero2 or zero3 first, then (beside zero1)
                    pipeline, context and tensor; the first one may be without its degree
  --rows N          of the table, at most (10)
  --help            this

A rank has 80 GB, computes 400e12 operations a second, and sends 450 GB/s to the seven others of its machine.
)";

template <class Number>
[[nodiscard]] Number number_of(std::string_view name, std::string_view value) {
  Number out{};
  auto const [end, problem] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (problem != std::errc{} || end != value.data() + value.size() || !(out > 0) || !(out <= Number(1'000'000'000))) {
    throw config_error(text(name, " is \"", value, "\"; it takes a number above 0"));
  }
  return out;
}

/// "zero1=8,pipeline=4:1f1b,tensor=2"
[[nodiscard]] inline layout layout_of(std::string_view given, int ranks) {
  layout out{.ranks = ranks, .zero = -1};
  int replicas = 0;
  for (std::string_view rest = given; !rest.empty();) {
    auto const comma = rest.find(',');
    auto const part = rest.substr(0, comma);
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
    auto const equals = part.find('=');
    auto const name = part.substr(0, equals);
    auto value = equals == part.npos ? std::string_view() : part.substr(equals + 1);
    if (name == "pipeline" && value.find(':') != value.npos) {
      out.schedule = value.substr(value.find(':') + 1);
      value = value.substr(0, value.find(':'));
    }
    int* const degree = name == "pipeline" ? &out.stages : name == "context" ? &out.context : &out.tensor;
    if (name == "pipeline" || name == "context" || name == "tensor") {
      if (value.empty()) throw config_error(text("--parallel: ", name, " needs a degree, as in ", name, "=2"));
      *degree = number_of<int>(text("--parallel: ", name), value);
      continue;
    }
    int stage = 0;
    for (auto const each : {"data", "zero1", "zero2", "zero3"}) {
      if (name == each) out.zero = stage;
      ++stage;
    }
    if (out.zero < 0) {
      throw config_error(text("--parallel: \"", part,
                              "\" is not a part of a layout; the first is data, zero1, zero2 or",
                              " zero3, the others pipeline=N:SCHEDULE, context=N and tensor=N"));
    }
    if (!value.empty()) replicas = number_of<int>(text("--parallel: ", name), value);
  }
  if (out.zero < 0) throw config_error("--parallel: begin with data, zero1, zero2 or zero3");
  if (out.zero != 1 && (out.stages > 1 || out.context > 1)) {
    throw config_error("--parallel: a pipeline and context are planned beside zero1 alone");
  }
  if (out.zero % 2 == 0 && out.tensor > 1) throw config_error("--parallel: tensor is planned beside zero1 and zero3");
  if (out.replicas() * out.stages * out.context * out.tensor != ranks || (replicas > 0 && replicas != out.replicas())) {
    throw config_error(text("--parallel: the degrees of ", given, " do not make ", ranks, " ranks (--ranks)"));
  }
  return out;
}

/// @returns the table for the options behind --plan. Throws config_error.
[[nodiscard]] inline std::string asked_plans(std::vector<std::string_view> const& given) {
  std::string name = "124M";
  std::string_view parallel;
  nn::gpt own{.vocabulary = 0, .context = 0, .layers = 0, .heads = 0, .channels = 0};
  int ranks = 64;
  std::int64_t samples = 1024, rows = 10;
  double network = 400;
  for (std::size_t i = 0; i < given.size(); i += 2) {
    auto const option = given[i];
    if (!option.starts_with("--")) throw config_error(text("unexpected argument \"", option, "\"; see --help"));
    if (i + 1 == given.size()) throw config_error(text(option, " needs a value"));
    auto const value = given[i + 1];
    auto* const size = option == "--layers"       ? &own.layers
                       : option == "--heads"      ? &own.heads
                       : option == "--channels"   ? &own.channels
                       : option == "--vocabulary" ? &own.vocabulary
                       : option == "--context"    ? &own.context
                       : option == "--samples"    ? &samples
                       : option == "--rows"       ? &rows
                                                  : nullptr;
    if (size != nullptr) {
      *size = number_of<std::int64_t>(option, value);
    } else if (option == "--model") {
      name = value;
    } else if (option == "--ranks") {
      ranks = number_of<int>(option, value);
    } else if (option == "--network") {
      network = number_of<double>(option, value);
    } else if (option == "--parallel") {
      parallel = value;
    } else {
      throw config_error(text("unknown option ", option, "; see --help"));
    }
  }
  nn::gpt model{.vocabulary = 50304, .context = 1024, .layers = 12, .heads = 12, .channels = 768};
  if (name == "1.3B") {
    model = {.vocabulary = 50304, .context = 2048, .layers = 24, .heads = 16, .channels = 2048};
  } else if (name == "7B" || name == "70B") {
    model = name == "7B" ? small : large;
  } else if (name != "124M") {
    throw config_error(text("--model is \"", name, "\"; it is 124M, 1.3B, 7B or 70B"));
  }
  for (auto const member :
       {&nn::gpt::vocabulary, &nn::gpt::context, &nn::gpt::layers, &nn::gpt::heads, &nn::gpt::channels}) {
    if (own.*member > 0) model.*member = own.*member;
  }
  auto const outside = network * 1e9 / 8;
  std::vector<row> found;
  if (parallel.empty()) {
    found = layouts_that_fit(name, model, ranks, samples, outside);
    if (found.empty()) throw config_error("no layout of this model fits into 80 GB a rank; try more --ranks");
  } else {
    auto const asked = layout_of(parallel, ranks);
    if (samples % asked.replicas() != 0) {
      throw config_error(text("--samples is ", samples, ", which the ", asked.replicas(), " replicas cannot share"));
    }
    found.push_back(row_of(name, model, asked, samples, outside));
  }
  if (static_cast<std::int64_t>(found.size()) > rows) found.resize(static_cast<std::size_t>(rows));
  constexpr auto line = "{:<34} {:>9} {:>9} {:>9} {:>12} {:>10} {:>7}\n";
  auto out = fmt::format(line, "", "seconds", "seconds", "GB held", "GB sent in", "GB sent", "") +
             fmt::format(line, "strategy", "at best", "at worst", "of 80", "the machine", "beyond", "idle");
  for (auto const& it : found) {
    out += fmt::format(line, strategy_of(it.on), fmt::format("{:.3g}", it.at_best), fmt::format("{:.3g}", it.at_worst),
                       fmt::format("{:.1f}", 1e-9 * static_cast<double>(it.memory.total())),
                       fmt::format("{:.3g}", 1e-9 * it.inside), fmt::format("{:.3g}", 1e-9 * it.outside),
                       fmt::format("{:.1f} %", 100 * it.bubble.plan / (1 + it.bubble.plan)));
  }
  return out;
}

}  // namespace on_paper
