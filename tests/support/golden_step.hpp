#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "golden.hpp"
#include "trireme/trireme.hpp"

namespace golden {

/// Takes a step of plain descent with rate 1 from the parameters of the file: what a value has lost is its gradient.
/// @param start  before the names "loss", "parameter/..." and "gradient/..." in the file.
template <class Model, class Data>
void compare_step(Model const& model, Data const& data, std::int64_t batch, std::int64_t micro_batches,
                  trireme::formats::safetensors::reader const& file, std::string const& start = "") {
  using namespace trireme;
  comm::self_world self;
  auto trainer = make_trainer(model, optim::sgd{.learning_rate = 1}, self, precision::fp64{});
  std::map<std::string, std::vector<double>> before;
  trainer.change_parameters([&](std::string const& name, auto const&, std::int64_t, auto values) {
    auto& theirs = before[name] = read<double>(file, start + "parameter/" + name);
    REQUIRE(values.size() == static_cast<std::int64_t>(theirs.size()));
    std::copy(theirs.begin(), theirs.end(), values.span().begin());
  });
  auto const loss = trainer.fit(data, {.steps = 1, .batch = batch, .micro_batches = micro_batches}).last_loss;
  CHECK(std::abs(loss - read<double>(file, start + "loss")[0]) < 1e-12);
  std::size_t compared = 0;
  trainer.for_each_state([&](std::string const& state, auto const&, std::int64_t, auto values) {
    if (!state.starts_with("value/")) return;
    auto const name = state.substr(6);
    INFO(name);
    auto const gradient = read<double>(file, start + "gradient/" + name);
    REQUIRE(values.size() == static_cast<std::int64_t>(gradient.size()));
    double worst = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      auto const ours = before.at(name)[i] - values[static_cast<std::int64_t>(i)];
      worst = std::max(worst, std::abs(ours - gradient[i]));
    }
    CHECK(worst < 1e-12);
    ++compared;
  });
  CHECK(compared == before.size());
}

}  // namespace golden
