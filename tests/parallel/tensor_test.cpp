// test-sanitize: thread
// test-takes: 60
#include "trireme/parallel/tensor.hpp"

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "../support/sentence.hpp"
#include "tensor_cases.hpp"
#include "trireme/comm/in_space.hpp"

using namespace trireme;
using namespace tensor_cases;

namespace {

/// The difference between trainings on several ranks and the one on one rank.
template <class Precision, class Optimizer>
void compare(nn::gpt const& model, Precision const& precision, Optimizer const& optimizer, limits const& most) {
  auto const training = twenty_steps(model);
  auto const answer_on = [&](int ranks, bool cuts_rows) {
    std::vector<double> out;
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto const mine = answer(world, model, precision, optimizer, layers_shared(cuts_rows));
      if (world.rank() == world.size() - 1) out = mine;
    });
    return out;
  };
  auto const serial = training.on(1, precision, optimizer, layers_shared(false)).front();
  auto const expected = answer_on(1, false);
  REQUIRE(serial.losses.back() < serial.losses.front());
  for (bool const cuts_rows : {false, true}) {
    for (int const ways : {1, 2, 3, 4}) {
      INFO("ways " << ways << (cuts_rows ? ", rows cut" : "") << ", heads " << model.heads);
      auto const found = training.on(ways, precision, optimizer, layers_shared(cuts_rows)).back();
      check(found, serial, most);
      CHECK(toy::distance(answer_on(ways, cuts_rows), expected) < most.losses);
      if (ways == 1) toy::check_equal(found, serial);
    }
  }
}

// One type for both.
using either = optim::any<environment<precision::fp32>>;

}  // namespace

TEST_CASE("layers shared by 1 to 4 ranks train as on one rank, in double", "[parallel][tensor]") {
  watchdog const guard("tensor parallelism in double");
  for (auto const& model : {odd, odder}) compare(model, precision::fp64{}, decaying, {1e-10, 1e-10, 1e-10});
}

TEST_CASE("layers shared by 1 to 4 ranks train as on one rank, in float", "[parallel][tensor]") {
  watchdog const guard("tensor parallelism in float");
  for (auto const& model : {odd, odder}) compare(model, precision::fp32{}, either(toy::steady), {1e-5, 1e-5, 1e-5});
  compare(odd, precision::fp32{}, either(decaying), {1e-4, 1e-3, 1e-1});
}

TEST_CASE("layers shared by 1 to 4 ranks train within the tolerance of bfloat16", "[parallel][tensor]") {
  watchdog const guard("tensor parallelism in bfloat16");
  constexpr auto tolerance = precision::bf16::tolerance;
  for (auto const& model : {odd, odder})
    compare(model, precision::bf16{}, toy::steady, {tolerance, tolerance, tolerance});
}

TEST_CASE("a degree larger than the number of heads or tokens is refused with the numbers", "[parallel][tensor]") {
  auto const sentence = [](nn::gpt const& model) {
    std::string first;
    std::mutex one_at_a_time;
    launch(comm::threads{.ranks = 4}, [&](auto& world) {
      using env = environment<precision::fp32>;
      parallel::communicator_group<env, comm::threads_world> group(world);
      auto const mine = sentence_of<config_error>([&] { staged_engine<env> const engine(model, group); });
      std::lock_guard const lock(one_at_a_time);
      if (!mine.empty()) first = mine;
    });
    return first;
  };
  CHECK(sentence({.layers = 1, .heads = 3, .channels = 6}) ==
        "trireme::nn::attend: 3 heads cannot be cut into 4 ways; a tensor group has at most as many ranks as a layer "
        "has heads");
  CHECK(
      sentence({.vocabulary = 3, .layers = 1, .heads = 4, .channels = 8}) ==
      "trireme::nn::embedding: the 3 words of transformer.wte.weight cannot be cut into 4 ways; a tensor group has at "
      "most as many ranks as there are words");
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
    if (world.rank() == 3) CHECK(toy::distance(mine, serial) < 1e-12);
  });
}

TEST_CASE("layers of a tensor group access no tensor outside ops and comm", "[parallel][tensor][phantom]") {
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
      auto const data = toy::text_for(odd, 45);
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
