// test-timeout: 200
// test-sanitize: none
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../support/spline.hpp"
#include "../watchdog.hpp"
#include "trireme/train/any_trainer.hpp"
#include "trireme/trireme.hpp"

// Parameters that are changed from outside: under every strategy, all that layers read gets the new values.

using namespace trireme;

namespace {

auto const sine = data::function([](float x) { return std::sin(x); }, {.samples = 48});
nn::mlp const model{.hidden = {12, 12}};

/// New values, as a function of the tensor and the position in the whole of it.
auto const rewrite = [](std::string const& name, parameter_info const& part, std::int64_t first, auto values) {
  auto const offset = static_cast<double>(hash_name(name) % 97);
  for_each_run(part, first, values.size(), [&](std::int64_t in_whole, std::int64_t here, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      auto& value = values[here - first + i];
      value =
          static_cast<std::remove_cvref_t<decltype(value)>>(0.4 * std::sin(offset + static_cast<double>(in_whole + i)));
    }
  });
};

/// The same for whole tensors.
auto const rewrite_whole = [](std::string const& name, shape const& extents, auto values) {
  if (extents.size() != static_cast<std::int64_t>(values.size())) throw error("no whole tensor");
  rewrite(name, {name, extents, {}, true}, 0, tensor_view(values.data(), {extents.size()}));
};

/// Mean losses: after training, after the change, and after three more steps.
template <class World, class... Policies>
std::vector<double> losses(World& world, bool whole, Policies const&... policies) {
  auto trainer = make_trainer(model, optim::sgd{.learning_rate = 1e-2}, world, policies...);
  trainer.fit(sine, {.steps = 9, .batch = 16, .micro_batches = 4, .stop_after = 6});
  std::vector<double> found{trainer.evaluate(sine)};
  if (whole)
    trainer.change_parameters(rewrite_whole);
  else
    trainer.change_parameters(rewrite);
  found.push_back(trainer.evaluate(sine));
  trainer.fit(sine, {.steps = 9, .batch = 16, .micro_batches = 4});
  found.push_back(trainer.evaluate(sine));
  return found;
}

template <class Precision, class Parallel>
void changes_as_serial(int ranks, double tolerance, Parallel const& parallel) {
  watchdog const guard(text("parameters changed under ", describe(parallel)));
  std::vector<double> serial, found;
  comm::self_world alone;
  serial = losses(alone, false, Precision{});
  REQUIRE(std::abs(serial[1] - serial[0]) > 0.05);
  for (bool const whole : {false, true}) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto const mine = losses(world, whole, Precision{}, parallel);
      if (world.rank() == world.size() - 1) found = mine;
    });
    INFO(describe(parallel) << " on " << ranks << " ranks, " << (whole ? "whole tensors" : "pieces"));
    for (std::size_t i = 0; i < 3; ++i) CHECK(found[i] == Approx(serial[i]).epsilon(tolerance));
  }
}

}  // namespace

TEST_CASE("all strategies and stages use parameters that were changed", "[train]") {
  changes_as_serial<precision::fp32>(3, 1e-5, parallel::data{});
  changes_as_serial<precision::fp32>(2, 1e-5, parallel::zero<1>{.bucket_bytes = 1024});
  changes_as_serial<precision::fp32>(4, 1e-5, parallel::zero<3>{.bucket_bytes = 1024});
  changes_as_serial<precision::fp32>(3, 1e-5, parallel::pipeline<>{.stages = 3});
}

TEST_CASE("the values of bf16 layers follow changed master values", "[train][precision]") {
  changes_as_serial<precision::bf16>(2, 2e-2, parallel::data{});
  changes_as_serial<precision::bf16>(3, 2e-2, parallel::zero<3>{.bucket_bytes = 1024});
}

TEST_CASE("parameters of a plain model are changed in place", "[train][plain_model]") {
  watchdog const guard("a plain model");
  launch(comm::threads{.ranks = 3}, [](auto& world) {
    toy::spline spline;
    auto trainer = make_trainer(spline, optim::sgd{}, world, parallel::zero<1>{});
    trainer.change_parameters(
        [](std::string const&, auto const&, std::int64_t, auto values) { ops::on<host>::fill(values, 0.25); });
    int elements = 0;
    spline.visit_parameters([&](std::string const&, auto values, auto) {
      for (auto const each : values.span()) {
        if (each != 0.25F) throw error("a parameter was not changed");
        ++elements;
      }
    });
    if (elements == 0) throw error("nothing was compared");
  });
}

TEST_CASE("ranks that write different values get an error, and broadcast() makes them equal", "[train]") {
  watchdog const guard("unequal changes");
  std::vector<std::string> said(2);
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(model, optim::sgd{}, world);
    said[static_cast<std::size_t>(world.rank())] = sentence_of([&] {
      trainer.change_parameters([&](std::string const& name, auto const&, std::int64_t, auto values) {
        if (name == "layers.1.weight") ops::on<host>::fill(values, world.rank());
      });
    });
    trainer.broadcast();
    static_cast<void>(trainer.state_hash());
  });
  for (auto const& each : said) CHECK(contains(each, "layers.1.weight"));
}

namespace {

/// Ranks    0 and 1 train under a strategy; the others predict, each alone, with the parameters of rank 0.
template <class Strategy>
void shares(Strategy const& strategy) {
  INFO(describe(strategy));
  watchdog const guard("shared parameters");
  std::vector<std::vector<float>> predicted(4);
  launch(comm::threads{.ranks = 4}, [&](auto& world) {
    bool const trains = world.rank() < 2;
    auto group = world.split(trains ? 0 : 1 + world.rank(), 0);
    auto const use = [&](auto trainer_of) {
      auto trainer = trainer_of();
      if (trains) trainer.fit(sine, {.steps = 5, .batch = 16, .micro_batches = 4});
      auto const before = trains ? trainer.state_hash() : 0;
      broadcast_parameters(trainer, world);
      if (trains && trainer.state_hash() != before) throw error("sharing has changed a trainer that trains");
      if (trains) trainer.fit(sine, {.steps = 6, .batch = 16, .micro_batches = 4});
      broadcast_parameters(trainer, world);
      std::vector<float> const x{-1, 0.25F, 2};
      auto const y = trainer.predict(x);
      predicted[static_cast<std::size_t>(world.rank())] = {y.span().begin(), y.span().end()};
    };
    optim::sgd const sgd{.learning_rate = 1e-2};
    nn::mlp const four{.hidden = {12, 12, 12}};  // units
    if (trains)
      use([&] { return make_trainer(four, sgd, group, strategy); });
    else
      use([&] { return make_trainer(four, sgd, group); });
  });
  for (auto const& each : predicted) CHECK(each == predicted[0]);
  CHECK(predicted[0][0] != predicted[0][1]);
}

}  // namespace

TEST_CASE("ranks that do not train predict with parameters from broadcast_parameters()", "[train]") {
  shares(parallel::data{});
  shares(parallel::zero<1>{});
  shares(parallel::pipeline<schedule::zb_v>{.stages = 2});
  auto const wrong = [] {
    launch(comm::threads{.ranks = 2}, [](auto& world) {
      comm::self_world alone;
      auto trainer = make_trainer(nn::mlp{.hidden = {world.rank() == 0 ? 4 : 8}}, optim::sgd{}, alone);
      broadcast_parameters(trainer, world);
    });
  };
  CHECK(contains(sentence_of(wrong), "trireme::broadcast_parameters: a parameter is \"layers.0.bias\""));
}

TEST_CASE("broadcast_parameters() copies a plain model's state from another rank", "[train][plain_model]") {
  watchdog const guard("plain models that share");
  launch(comm::threads{.ranks = 3}, [](auto& world) {
    bool const trains = world.rank() < 2;
    auto group = world.split(trains ? 0 : 1, 0);
    toy::spline spline;
    auto trainer = make_trainer(spline, optim::sgd{}, group, parallel::zero<1>{});
    trainer.change_parameters([&](std::string const&, shape const&, std::span<float> values) {
      std::ranges::fill(values, trains ? 0.25F : 0.5F);
    });
    broadcast_parameters(trainer, world, 1);
    spline.visit_parameters([&](std::string const&, auto values, auto) {
      for (auto const each : values.span()) {
        if (each != 0.25F) throw error("not the values of rank 1");
      }
    });
  });
}

TEST_CASE("any_trainer starts or resumes in a directory, and changes parameters", "[train]") {
  watchdog const guard("any_trainer");
  scratch folder;
  auto const run = folder / "run";
  comm::self_world world;
  auto const fill = [](any_trainer& trainer, double value) {
    trainer.change_parameters([&](std::string const& name, shape const&, std::span<float> values) {
      if (name.ends_with("bias")) std::ranges::fill(values, static_cast<float>(value));
    });
  };
  auto const check = [&](any_trainer& trainer, float value) {
    trainer.for_each_parameter([&](std::string const& name, shape const&, std::span<float const> values) {
      if (name.ends_with("bias")) CHECK(std::ranges::count(values, value) == std::ssize(values));
    });
  };
  auto first = make_any_trainer(model, optim::sgd{}, world);
  CHECK_FALSE(first->resume_or_start(run));
  fill(*first, 0.5);
  check(*first, 0.5F);
  first->save(run);
  auto second = make_any_trainer(model, optim::sgd{}, world);
  CHECK(second->resume_or_start(run));
  CHECK(second->state_hash() == first->state_hash());
  CHECK(contains(sentence_of<config_error>([&] { make_any_trainer(model, optim::sgd{}, world)->prepare_saves(run); }),
                 "another run"));

  auto wide = make_any_trainer(model, optim::sgd{}, precision::fp64{}, world);
  auto const before = wide->state_hash();
  wide->change_parameters([](std::string const&, shape const&, std::span<float>) {});
  CHECK(wide->state_hash() == before);  // values that are not changed keep all their bits
  fill(*wide, 0.5);
  check(*wide, 0.5F);
}
