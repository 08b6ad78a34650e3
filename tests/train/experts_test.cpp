// test-sanitize: none
// test-takes: 50
// A GPT with experts trains the same for every distribution of its experts.
#include "trireme/parallel/expert.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "expert_cases.hpp"

using namespace trireme;
using expert_cases::clipped;

TEST_CASE("experts distributed over 1 to 5 ranks end where serial training ends", "[train][experts]") {
  watchdog dog("experts");
  auto const training = expert_cases::twenty_steps(12);
  auto const serial = training.alone(clipped);
  for (int const ranks : {1, 2, 3, 4, 5}) {
    expert_cases::for_each_mesh(ranks, [&](std::string const& name, auto const& policy) {
      dog.now(name);
      INFO(name);
      toy::check_near(training.on(ranks, clipped, policy).front(), serial, 1e-5);
    });
  }
}

TEST_CASE("distributed experts with a balance loss, checkpointed blocks and one choice equal serial training",
          "[train][experts]") {
  watchdog dog("kinds of experts");
  auto training = expert_cases::twenty_steps(8);
  SECTION("balanced") { training.model.balance = 0.02; }
  SECTION("checkpointed") { training.model.checkpointed = true; }
  SECTION("one choice") { training.model.top_k = 1; }
  SECTION("all choices") { training.model.top_k = 5; }
  auto const dealt = training.on(4, clipped, expert_cases::dealt(parallel::data{}, 2, 2));
  toy::check_near(dealt.front(), training.alone(clipped), 1e-5);
}

TEST_CASE("in other precisions distributed experts stay within the precision's tolerance of serial training",
          "[train][experts]") {
  watchdog dog("experts in doubles and in bfloat16");
  auto const check = [](auto const& precision, double most) {
    auto const training = expert_cases::twenty_steps(8);
    auto const dealt = training.on(4, clipped, precision, expert_cases::dealt(parallel::zero<1>{}, 2, 2));
    toy::check_near(dealt.front(), training.alone(clipped, precision), most);
  };
  check(precision::fp64{}, 1e-11);
  check(precision::bf16{}, precision::bf16::tolerance);
}

TEST_CASE("losslessly compressed gradients of experts equal uncompressed ones", "[train][experts]") {
  watchdog dog("compressed experts");
  auto const training = toy::of_gpt({.steps = 4, .batch = 8, .micro_batches = 4}, expert_cases::model, 24);
  auto const serial = training.alone(toy::steady);
  auto const check = [&](auto const& compressor, double tolerance) {
    auto const dealt = training.on(4, toy::steady, expert_cases::dealt(parallel::zero<1>{}, 2, 2), compressor);
    CHECK(toy::distance(dealt.front().losses, serial.losses) < tolerance);
    CHECK(toy::distance(dealt.front().norms, serial.norms) < tolerance);
  };
  compression::top_k const all{.ratio = 1};
  check(all, 1e-5);
  check(compression::error_feedback<compression::top_k>{all}, 1e-5);
  check(compression::cast<bf16>{}, precision::bf16::tolerance);
}

TEST_CASE("a rank with fewer micro-batches, or none, computes its experts for the others", "[train][experts]") {
  watchdog dog("uneven micro-batches");
  // 5 samples in 5 micro-batches: some ranks run one more than others; 2 samples in 4: some run none.
  for (std::int64_t const batch : {5, 2}) {
    INFO(batch << " samples");
    auto training = expert_cases::twenty_steps(batch);
    if (batch == 2) training.schedule.micro_batches = 4;
    auto const serial = training.alone(clipped);
    auto const check = [&](int ranks, auto const& policy) {
      dog.now(to_string(policy));
      INFO(to_string(policy));
      toy::check_near(training.on(ranks, clipped, policy).front(), serial, 1e-5);
    };
    check(4, expert_cases::dealt(parallel::zero<1>{}, 1, 4));
    check(4, expert_cases::dealt(parallel::zero<1>{}, 2, 2));
    check(2, expert_cases::dealt(parallel::zero<2>{}, 1, 2));
    check(4, expert_cases::dealt(parallel::zero<2>{}, 2, 2));
    check(4, expert_cases::dealt(parallel::zero<3>{}, 2, 2));
    check(6, expert_cases::dealt(parallel::zero<3>{}, 3, 2));
    for (auto const* const schedule : {"gpipe", "1f1b", "zbh1", "zbv"})
      check(4, expert_cases::with_stages(parallel::data{}, 1, 2, schedule, 2));
    check(8, expert_cases::with_stages(parallel::zero<1>{}, 2, 2, "1f1b", 2));
  }
}

TEST_CASE("evaluation and prediction use all experts, whatever share of the samples a rank has", "[train][experts]") {
  watchdog dog("evaluation");
  auto const data = toy::text{.samples = 11};
  comm::self_world self;
  auto alone = make_trainer(expert_cases::model, optim::adamw{}, self);
  auto const expected = alone.evaluate(data, 4);
  std::vector<std::int32_t> const tokens{1, 5, 9, 12, 33, 2, 8, 31, 4, 4, 3, 2};
  tensor_view<std::int32_t const> const prompt(tokens.data(), {1, 12});
  auto const logits = alone.predict(prompt);
  expert_cases::for_each_mesh(4, [&](std::string const& name, auto const& policy) {
    INFO(name);
    double loss = 0;
    double most = 0;
    launch(comm::threads{.ranks = 4}, [&](auto& world) {
      auto trainer = make_trainer(expert_cases::model, optim::adamw{}, world, policy);
      auto const mine = trainer.evaluate(data, 4);  // three batches on up to four ranks
      auto const answer = trainer.predict(prompt);
      if (world.rank() != 0) return;
      loss = mine;
      for (std::int64_t i = 0; i < logits.view().size(); ++i)
        most = std::max(most, static_cast<double>(std::abs(answer[i] - logits[i])));
    });
    CHECK(loss == Approx(expected).epsilon(1e-6));
    CHECK(most < 1e-6);
  });
}

TEST_CASE("checkpoints of experts are read under any distribution of experts", "[train][experts][checkpoint]") {
  watchdog dog("checkpoints of experts");
  auto const training = expert_cases::twenty_steps(8);
  auto const run = [&](int ranks, auto const& policy, std::string const& load, std::int64_t steps,
                       std::string const& save) { return training.go_on(ranks, load, steps, save, clipped, policy); };
  auto const each = [](auto&& f) {
    f(1, parallel::data{});
    f(2, parallel::zero<2>{});
    f(3, parallel::expert{});
    f(4, expert_cases::dealt(parallel::zero<1>{}, 2, 2));
    f(4, expert_cases::dealt(parallel::zero<3>{}, 2, 2));
    f(4, expert_cases::with_stages(parallel::data{}, 1, 2, "1f1b", 2));
  };
  auto const start = run(1, parallel::data{}, "", 0, "");
  each([&](int ranks, auto const& from) {
    INFO("from " << to_string(from));
    CHECK(run(ranks, from, "", 0, "") == start);
    scratch folder;
    auto const saved = run(ranks, from, "", 2, folder.path());
    CHECK(saved != start);
    each([&](int others, auto const& to) {
      INFO("to " << to_string(to));
      CHECK(run(others, to, folder.path(), 2, "") == saved);
    });
  });
}

TEST_CASE("tensors that an expert group shares are equal on all of its ranks", "[train][experts]") {
  watchdog dog("copies");
  std::vector<std::map<std::string, std::vector<float>>> kept(4);
  launch(comm::threads{.ranks = 4}, [&](auto& world) {
    auto trainer = make_trainer(expert_cases::model, optim::adamw{.learning_rate = 1e-3}, world,
                                expert_cases::dealt(parallel::data{}, 2, 2));
    trainer.fit(toy::text{24}, {.steps = 5, .batch = 8, .micro_batches = 4});
    auto& mine = kept[static_cast<std::size_t>(world.rank())];
    trainer.for_each_state(
        [&](std::string const& what, parameter_info const& part, std::int64_t first, auto view) {
          if (!part.distributed.empty()) CHECK(part.extents[0] == (world.rank() % 2 == 0 ? 3 : 2));
          auto& values = mine[text(what, "@", first, part.is_shard() ? text(" of ", part.first[0]) : "")];
          for (std::int64_t i = 0; i < view.size(); ++i) values.push_back(static_cast<float>(view[i]));
        },
        true);
  });
  CHECK(kept[0] == kept[2]);
  CHECK(kept[1] == kept[3]);
  std::size_t shared = 0;
  for (auto const& [what, values] : kept[0]) {
    if (auto const other = kept[1].find(what); other != kept[1].end()) {
      CHECK(other->second == values);
      ++shared;
    }
  }
  CHECK(shared > 20);
}

TEST_CASE("unsupported settings of experts are refused in one sentence", "[train][experts]") {
  watchdog dog("refusals");
  auto const sentence = [](int ranks, auto const& policy) {
    return sentence_of<config_error>(
        [&] { static_cast<void>(expert_cases::twenty_steps(8).on(ranks, clipped, policy)); });
  };
  CHECK(sentence(6, parallel::expert{}) ==
        "trireme::nn::experts: 5 experts cannot be distributed over 6 ranks; an expert group has at most as many ranks "
        "as "
        "a layer has experts");
  CHECK(
      sentence(3, expert_cases::dealt(parallel::data{}, 2, 2)) ==
      "trireme::parallel::mesh: data=2, expert=2 takes 4 ranks, but the world has 3; change a degree or the number of "
      "ranks");
  CHECK(sentence(2, parallel::mesh{parallel::data{.reproducible = true}, parallel::expert{.ways = 2}}) ==
        "trireme::parallel::data: .reproducible sums micro-batches one by one, but the experts of "
        "parallel::expert mix their rows; leave one of them out");
}
