#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "small_gpt.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/train/make_trainer.hpp"

/// A training that a test repeats under different policies, and all that can be compared of it.
namespace toy {

using tensors = std::map<std::string, std::vector<double>>;

/// What a training leaves: the same on every rank, but for `weights` and `memory`.
struct outcome {
  std::vector<double> losses, norms;  // of each step
  std::vector<bool> skipped;
  tensors state;                // values, moments and residuals as whole tensors, of the ranks that answer for them
  std::int64_t different = 0;   // elements that a rank keeps, and that are not those of the one that answers for them
  std::vector<double> weights;  // as this rank's layers read them; empty where parameters are sharded
  trireme::exchange_memory memory;
  std::uint64_t hash = 0;
};

/// Collective. Makes the names that any rank has known to all of them, with their sizes.
template <class Comm>
void share_names(Comm& world, tensors& all) {
  std::string own;
  for (auto const& [name, values] : all) own += trireme::text(values.size(), ' ', name, '\n');
  for (int rank = 0; rank < world.size(); ++rank) {
    auto length = static_cast<std::int64_t>(own.size());
    world.broadcast(trireme::tensor_view<std::int64_t>(&length, trireme::shape{1}), rank);
    if (length == 0) continue;
    std::vector<std::uint8_t> letters(static_cast<std::size_t>(length));
    if (world.rank() == rank) std::copy(own.begin(), own.end(), letters.begin());
    world.broadcast(trireme::tensor_view<std::uint8_t>(letters), rank);
    std::istringstream lines(std::string(letters.begin(), letters.end()));
    std::string name;
    for (std::size_t size = 0; lines >> size && lines.get() == ' ' && std::getline(lines, name);)
      all[name].resize(size);
  }
}

/// Collective. What a trainer has in the end.
template <class Trainer>
void look_at(Trainer& trainer, outcome& out) {
  auto& world = trainer.world();
  out.memory = trainer.exchange().memory();
  bool compares = false;
  auto const piece = [&](std::string const& name, trireme::parameter_info const& part, std::int64_t first, auto view) {
    auto& whole = out.state[name];
    whole.resize(static_cast<std::size_t>(part.whole_extents().size()));
    trireme::for_each_run(part, first, view.size(), [&](std::int64_t at, std::int64_t in_part, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        auto& there = whole.at(static_cast<std::size_t>(at + i));
        auto const here = static_cast<double>(view[in_part - first + i]);
        if (!compares)
          there += here;
        else if (there != here)
          ++out.different;
      }
    });
  };
  trainer.for_each_state(piece);
  share_names(world, out.state);
  for (auto& [name, values] : out.state)
    world.all_reduce(trireme::tensor_view<double>(values), trireme::reduction::sum{});
  compares = true;
  trainer.for_each_state(piece, true);
  world.all_reduce(trireme::tensor_view<std::int64_t>(&out.different, trireme::shape{1}), trireme::reduction::sum{});
  for (auto const& entry : trainer.exchange().plan().entries()) {
    for (auto const value : trainer.exchange().parameter_values(entry).span())
      out.weights.push_back(static_cast<double>(value));
  }
  out.hash = trainer.state_hash();
}

/// A model, data and a schedule; policies, the optimizer among them, come with the calls.
template <class Model, class Data>
struct training {
  Model model;
  Data data;
  trireme::fit_options schedule;
  std::uint64_t seed = 7;

  /// Collective.
  template <class Comm, class... Policies>
  [[nodiscard]] outcome train(Comm& world, Policies const&... policies) const {
    auto trainer = trireme::make_trainer(model, world, policies...);
    trainer.initialise(seed);
    outcome out;
    trainer.on_step([&](trireme::step_report const& done) {
      out.losses.push_back(done.loss);
      out.norms.push_back(done.norm);
      out.skipped.push_back(done.skipped);
    });
    trainer.fit(data, schedule);
    look_at(trainer, out);
    return out;
  }
  /// By so many threads: of each rank.
  template <class... Policies>
  [[nodiscard]] std::vector<outcome> on(int ranks, Policies const&... policies) const {
    std::vector<outcome> all(static_cast<std::size_t>(ranks));
    trireme::launch(trireme::comm::threads{.ranks = ranks},
                    [&](auto& world) { all[static_cast<std::size_t>(world.rank())] = train(world, policies...); });
    return all;
  }
  template <class... Policies>
  [[nodiscard]] outcome alone(Policies const&... policies) const {
    trireme::comm::self_world world;
    return train(world, policies...);
  }

  /// By so many threads, from the checkpoint in `load` up to a step, to one in `save`, where these are not empty.
  /// @returns the state's hash.
  template <class... Policies>
  std::uint64_t go_on(int ranks, std::string const& load, std::int64_t step, std::string const& save,
                      Policies const&... policies) const {
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(ranks));
    trireme::launch(trireme::comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = trireme::make_trainer(model, world, policies...);
      trainer.initialise(seed);
      if (!load.empty()) trainer.load(load);
      auto until = schedule;
      until.stop_after = step;
      if (trainer.steps() < step) trainer.fit(data, until);
      if (!save.empty()) trainer.save(save);
      hashes[static_cast<std::size_t>(world.rank())] = trainer.state_hash();
    });
    for (auto const hash : hashes) CHECK(hash == hashes.front());
    return hashes.front();
  }
};

/// A training of a small GPT on its text.
inline training<trireme::nn::gpt, text> of_gpt(trireme::fit_options const& schedule,
                                               trireme::nn::gpt const& model = gpt, std::int64_t samples = 45) {
  return {model, text_for(model, samples), schedule};
}
/// The last step in each epoch is short and uneven.
inline auto const twelve_steps = of_gpt({.steps = 12, .batch = 10, .micro_batches = 6});

inline constexpr double infinitely_far = std::numeric_limits<double>::infinity();

/// The largest difference, relative to the largest number; infinite for different sizes, and where a number is NaN.
inline double distance(std::vector<double> const& a, std::vector<double> const& b) {
  if (a.size() != b.size()) return infinitely_far;
  double most = 0;
  double largest = 1e-300;
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto const apart = std::abs(a[i] - b[i]);
    if (!std::isfinite(apart)) return infinitely_far;
    most = std::max(most, apart);
    largest = std::max({largest, std::abs(a[i]), std::abs(b[i])});
  }
  return most / largest;
}

/// How far a training is from another one, relative.
struct distances {
  double losses = 0, norms = 0;  // of the worst step
  double state = 0;              // of all values and moments of the other one together
  double worst = 0;              // of the worst tensor of values
};
inline distances between(outcome const& a, outcome const& b) {
  distances far;
  auto const of_worst_step = [](std::vector<double> const& x, std::vector<double> const& y) {
    double most = x.size() == y.size() && !x.empty() ? 0 : infinitely_far;
    for (std::size_t s = 0; s < std::min(x.size(), y.size()); ++s) most = std::max(most, distance({x[s]}, {y[s]}));
    return most;
  };
  far.losses = of_worst_step(a.losses, b.losses);
  far.norms = of_worst_step(a.norms, b.norms);
  double apart = 0, all = 0;
  bool missing = false;  // or of another size, or no number
  for (auto const& [name, values] : b.state) {
    auto const found = a.state.find(name);
    auto const here = found == a.state.end() ? infinitely_far : distance(found->second, values);
    missing = missing || here == infinitely_far;
    if (missing) break;
    if (name.starts_with("value/")) {
      if (here > far.worst) UNSCOPED_INFO(name << " differs by " << here);
      far.worst = std::max(far.worst, here);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      apart += (found->second[i] - values[i]) * (found->second[i] - values[i]);
      all += values[i] * values[i];
    }
  }
  far.state = missing ? infinitely_far : std::sqrt(apart / all);
  if (missing) far.worst = infinitely_far;
  return far;
}
/// That a training under some policies is the one that it should be.
/// @param worst  for steps under which no tensor walks apart; see `steady`.
inline void check_near(outcome const& found, outcome const& expected, double most, double worst = infinitely_far) {
  auto const far = between(found, expected);
  CHECK(far.losses < most);
  CHECK(far.norms < most);
  CHECK(far.state < most);
  CHECK(far.worst < worst);
  CHECK(found.different == 0);
}
/// Bit for bit.
inline void check_equal(outcome const& found, outcome const& expected) {
  CHECK(found.hash == expected.hash);
  CHECK(found.losses == expected.losses);
  CHECK(found.norms == expected.norms);
  CHECK((found.state == expected.state));
  CHECK(found.weights == expected.weights);
  CHECK(found.different == 0);
}

}  // namespace toy
