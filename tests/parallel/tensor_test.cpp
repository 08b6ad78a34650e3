// test-sanitize: thread
#include "trireme/parallel/tensor.hpp"

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "tensor_cases.hpp"
#include "trireme/comm/in_space.hpp"

using namespace trireme;
using namespace tensor_cases;

namespace {

template <class Precision, class Optimizer>
outcome train_on(int ways, nn::gpt const& model, Optimizer const& optimizer, bool cuts_rows) {
  outcome out;
  launch(comm::threads{.ranks = ways}, [&](auto& world) {
    outcome mine;
    train<Precision>(world, model, optimizer, cuts_rows, mine);
    if (world.rank() == world.size() - 1) out = std::move(mine);
  });
  return out;
}

/// How far trainings on several ranks are from the one on one rank.
template <class Precision, class Optimizer>
void compare(nn::gpt const& model, Optimizer const& optimizer, double losses, double norms, double weights) {
  auto const serial = train_alone<Precision>(model, optimizer);
  REQUIRE(serial.losses.back() < serial.losses.front());
  for (bool const cuts_rows : {false, true}) {
    for (int const ways : {1, 2, 3, 4}) {
      INFO("ways " << ways << (cuts_rows ? ", rows cut" : "") << ", heads " << model.heads);
      auto const ours = train_on<Precision>(ways, model, optimizer, cuts_rows);
      CHECK(ours.different == 0);
      CHECK(distance(ours.answer, serial.answer) < losses);
      CHECK(distance(ours.losses, serial.losses) < losses);
      CHECK(distance(ours.norms, serial.norms) < norms);
      CHECK(distance(ours.weights, serial.weights) < weights);
      if (ways == 1) CHECK(ours.weights == serial.weights);
    }
  }
}

}  // namespace

TEST_CASE("layers shared by 1 to 4 ranks train as on one rank, in double", "[parallel][tensor]") {
  watchdog const guard("tensor parallelism in double");
  for (auto const& model : {odd, odder}) compare<precision::fp64>(model, adaptive, 1e-10, 1e-10, 1e-10);
}

TEST_CASE("layers shared by 1 to 4 ranks train as on one rank, in float", "[parallel][tensor]") {
  watchdog const guard("tensor parallelism in float");
  for (auto const& model : {odd, odder}) compare<precision::fp32>(model, steady, 1e-5, 1e-5, 1e-5);
  compare<precision::fp32>(odd, adaptive, 1e-4, 1e-3, 1e-1);
}

TEST_CASE("layers shared by 1 to 4 ranks train within the tolerance of bfloat16", "[parallel][tensor]") {
  watchdog const guard("tensor parallelism in bfloat16");
  constexpr auto tolerance = precision::bf16::tolerance;
  for (auto const& model : {odd, odder}) compare<precision::bf16>(model, steady, tolerance, tolerance, tolerance);
}

TEST_CASE("more ways than heads or tokens are refused with the numbers", "[parallel][tensor]") {
  auto const sentence = [](nn::gpt const& model) {
    std::string first;
    std::mutex one_at_a_time;
    launch(comm::threads{.ranks = 4}, [&](auto& world) {
      using env = environment<precision::fp32>;
      parallel::communicator_group<env, comm::threads_world> group(world);
      try {
        staged_engine<env> const engine(model, group);
      } catch (config_error const& problem) {
        std::lock_guard const lock(one_at_a_time);
        first = problem.what();
      }
    });
    return first;
  };
  CHECK(
      sentence({.layers = 1, .heads = 3, .channels = 6}) ==
      "trireme::nn::attention: 3 heads cannot be cut into 4 ways; a tensor group has at most as many ranks as a layer "
      "has heads");
  CHECK(sentence({.vocabulary = 3, .layers = 1, .heads = 4, .channels = 8}) ==
        "trireme::nn::gpt: a vocabulary of 3 cannot be cut into 4 ways; a tensor group has at most as many ranks as "
        "there "
        "are tokens");
}

TEST_CASE("a rank may have no rows between the products", "[parallel][tensor]") {
  watchdog const guard("fewer rows than ranks");
  std::vector<std::int32_t> const tokens{5, 60, 17};
  auto const batch = make_samples(tensor_view<std::int32_t const>(tokens.data(), shape{1, 3}),
                                  tensor_view<std::int32_t const>(tokens.data(), shape{1, 3}));
  auto const run = [&](auto& world, bool cuts_rows) {
    using env = environment<precision::fp64>;
    parallel::communicator_group<env, std::remove_cvref_t<decltype(world)>> group(world, cuts_rows);
    staged_engine<env> engine(odder, group);
    comm::self_world alone;
    basic_exchange<env, comm::self_world, parallel::data, compression::none> exchange(engine.uses(), alone, {}, {});
    exchange.initialise(7);
    engine.invalidate();
    exchange.begin();
    auto const loss = engine.train(batch, 1, {1, 2}, [&](int use) { exchange.ready(use); });
    std::vector<double> numbers{loss.sum};
    for (auto const* use : engine.uses()) {
      if (use->info.name != "transformer.h.0.ln_1.weight") continue;
      for (auto const each : use->gradient.span()) numbers.push_back(each);
    }
    return numbers;
  };
  comm::self_world one;
  auto const serial = run(one, false);
  launch(comm::threads{.ranks = 4}, [&](auto& world) {
    auto const mine = run(world, true);
    if (world.rank() == 3) CHECK(distance(mine, serial) < 1e-12);
  });
}

TEST_CASE("shared layers touch no tensor above ops and comm", "[parallel][tensor][phantom]") {
  watchdog const guard("tensor parallelism in phantom memory");
  for (bool const cuts_rows : {false, true}) {
    launch(comm::threads{.ranks = 3}, [&](auto& world) {
      using env = environment<precision::bf16, phantom>;
      auto dry = comm::in_space<phantom>(world);
      parallel::communicator_group<env, decltype(dry)> group(dry, cuts_rows);
      staged_engine<env> engine(odd, group);
      comm::self_world alone;
      auto replicas = comm::in_space<phantom>(alone);
      basic_exchange<env, decltype(replicas), parallel::data, compression::none> exchange(engine.uses(), replicas, {},
                                                                                          {});
      sentences const data{odd.vocabulary};
      data::loader loader(data, data::loader_options{.batch = 5, .micro_batches = 1}, 0, 1);
      auto const& batch = loader.next().micro_batches[0];
      int ready = 0;
      engine.train(batch, 1, {}, [&](int) { ++ready; });
      auto const loss = engine.evaluate(batch);
      auto const logits = engine.predict(batch);
      if (world.rank() != 0) return;
      CHECK(ready == static_cast<int>(engine.uses().size()));
      CHECK(loss.count == batch.count() * context);
      CHECK(logits.extents() == shape{batch.count(), odd.vocabulary});
    });
  }
}

TEST_CASE("the axes print as the source that makes them, and compare", "[parallel][tensor]") {
  CHECK(parallel::to_string(parallel::tensor{.ways = 2}) == "parallel::tensor{.ways = 2}");
  CHECK(parallel::to_string(parallel::sequence{}) == "parallel::sequence{}");
  CHECK(parallel::tensor{} == parallel::tensor{.ways = 0});
  CHECK_FALSE(parallel::tensor{.ways = 2} == parallel::tensor{.ways = 3});
}
