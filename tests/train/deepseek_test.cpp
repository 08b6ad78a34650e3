// test-timeout: 300
// test-sanitize: none
// test-takes: 80
// A DeepSeek trains under every axis as on one rank.
#include "trireme/nn/deepseek.hpp"

#include "../formats/scratch.hpp"
#include "../support/plan_differences.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "expert_cases.hpp"
#include "meshes.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/train/plan.hpp"

using namespace trireme;

namespace {

toy::training<nn::deepseek, toy::text> const training{{.vocabulary = 37,
                                                       .context = 12,
                                                       .layers = 5,
                                                       .dense = 2,
                                                       .channels = 24,
                                                       .heads = 6,
                                                       .query_rank = 12,
                                                       .rank = 8,
                                                       .plain = 4,
                                                       .rotary_width = 2,
                                                       .values = 4,
                                                       .hidden = 36,
                                                       .experts = 6,
                                                       .top_k = 2,
                                                       .expert_hidden = 12,
                                                       .groups = 3,
                                                       .chosen_groups = 2},
                                                      {.samples = 24},
                                                      {.steps = 6, .batch = 8, .micro_batches = 4}};

template <class Each>
void compare_with_serial(int ranks, nn::deepseek const& model, Each const& for_each_mesh) {
  watchdog dog("a DeepSeek's strategies", std::chrono::seconds(250));
  auto it = training;
  it.model = model;
  auto const serial = it.alone(meshes::clipped);
  for_each_mesh(ranks, [&](std::string const& name, auto const& policy) {
    if (model.ahead > 0 && name.find("context") != std::string::npos) return;  // refused
    dog.now(name);
    INFO(name);
    toy::check_near(it.on(ranks, meshes::clipped, policy).front(), serial, 1e-5);
  });
}
auto const every_mesh = [](int ranks, auto&& f) { meshes::for_each_mesh(ranks, f); };
auto const every_deal = [](int ranks, auto&& f) { expert_cases::for_each_mesh(ranks, f); };

}  // namespace

TEST_CASE("every mesh of a DeepSeek ends where serial training ends", "[train][strategies]") {
  compare_with_serial(GENERATE(1, 2, 3, 4, 8), training.model, every_mesh);
}

TEST_CASE("a DeepSeek with experts distributed over ranks ends where serial training ends",
          "[train][strategies][experts]") {
  compare_with_serial(GENERATE(2, 3, 4), training.model, every_deal);
}

TEST_CASE("a checkpointed DeepSeek with one product for queries and a fixed bias ends where serial training ends",
          "[train][strategies]") {
  auto model = training.model;
  model.checkpointed = true;
  model.query_rank = 0;
  model.speed = 0;
  compare_with_serial(4, model, every_mesh);
  compare_with_serial(4, model, every_deal);
}

TEST_CASE("a DeepSeek with multi-token prediction ends where serial training ends", "[train][strategies]") {
  auto model = training.model;
  model.layers = 3;
  model.dense = 1;
  model.ahead = 1;
  auto const ranks = GENERATE(2, 4, 8);
  compare_with_serial(ranks, model, every_mesh);
  if (ranks < 8) compare_with_serial(ranks, model, every_deal);
  model.ahead = 2;
  model.checkpointed = true;
  if (ranks == 4) compare_with_serial(ranks, model, every_mesh);
}

TEST_CASE("reproducible training with multi-token prediction has the same bits on any number of ranks", "[train]") {
  auto it = training;
  it.model.layers = 2;
  it.model.dense = 1;
  it.model.ahead = 1;
  parallel::data const in_a_tree{.reproducible = true};
  auto const whole = it.on(1, meshes::clipped, meshes::any(in_a_tree, 1, 1, "1f1b")).front();
  auto const same = [&](int ranks, auto const& policy) {
    INFO(to_string(policy));
    CHECK(it.on(ranks, meshes::clipped, policy).front().hash == whole.hash);
  };
  same(2, meshes::any(in_a_tree, 2, 1, "1f1b"));
  same(4, meshes::without_pipeline(parallel::zero<2>{.reproducible = true}, 4));
  same(2, meshes::any(in_a_tree, 1, 2, "1f1b"));
  same(4, meshes::any(in_a_tree, 2, 2, "interleaved"));
  it.model.ahead = 2;
  auto const sentence = sentence_of<config_error>(
      [&] { static_cast<void>(it.on(2, meshes::clipped, meshes::any(in_a_tree, 1, 2, "1f1b"))); });
  CHECK(contains(sentence, "adds the gradients of the 3 uses of"));
}

TEST_CASE("bytes and memory of a step with multi-token prediction equal the plan", "[train]") {
  auto model = training.model;
  model.ahead = 1;
  auto const check = [&](int ranks, auto const& policy) {
    INFO(to_string(policy));
    std::vector<std::string> found(static_cast<std::size_t>(ranks));
    launch(comm::decorate(comm::threads{.ranks = ranks}, comm::counted{}), [&](auto& world) {
      auto trainer = make_trainer(model, optim::adamw{}, world, policy);
      auto const planned = plan(trainer, {.samples = 8, .micro_batches = 4});
      comm::traffic_table before, after;
      trainer.on_step([&](step_report const& done) { (done.step < 2 ? before : after) = world.counts(); });
      trainer.fit(training.data, {.steps = 9, .batch = 8, .micro_batches = 4, .stop_after = 3});
      found[static_cast<std::size_t>(world.rank())] = plan_differences(trainer, planned, before, after);
    });
    for (auto const& each : found) CHECK(each == "");
  };
  check(1, meshes::any(parallel::data{}, 1, 1, "1f1b"));
  check(2, meshes::any(parallel::data{}, 1, 2, "zbv"));
  check(4, meshes::any(parallel::data{}, 2, 1, "1f1b", {.tensor = 2, .sequence = true}));
}

TEST_CASE("a DeepSeek's unit costs equal the operations of a plan", "[train]") {
  for (int const ahead : {0, 1, 2}) {
    auto model = training.model;
    model.ahead = ahead;
    double a_token = 0;
    for (auto const each : model.unit_costs()) a_token += each;
    detail::counts_units count;
    model.units(count);
    CHECK(model.unit_costs().size() == static_cast<std::size_t>(count.count));
    CHECK(plan_for({.samples = 4}, model, optim::sgd{}).flops == Approx(4.0 * 12 * a_token).epsilon(1e-12));
  }
}

TEST_CASE("checkpoints of a DeepSeek, with balance biases, are read under any distribution of experts",
          "[train][checkpoint]") {
  watchdog dog("checkpoints of a DeepSeek");
  scratch folder;
  auto const saved =
      training.go_on(4, "", 3, folder.path(), meshes::clipped, expert_cases::dealt(parallel::zero<1>{}, 2, 2));
  CHECK(training.go_on(1, folder.path(), 3, "", meshes::clipped, parallel::data{}) == saved);
  CHECK(training.go_on(3, folder.path(), 3, "", meshes::clipped, expert_cases::dealt(parallel::data{}, 1, 3)) == saved);
  CHECK(training.go_on(4, folder.path(), 3, "", meshes::clipped,
                       expert_cases::with_stages(parallel::data{}, 1, 2, "1f1b", 2)) == saved);
}
