// test-sanitize: none
#include "trireme/train/plan.hpp"

#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/plan_differences.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "meshes.hpp"
#include "trireme/comm/counted.hpp"

using namespace trireme;

namespace {

/// Plans a training, trains, and compares the third step with the plan on every rank.
template <class Parallel, class... Policies>
void planned_is_found(std::string const& name, int ranks, Parallel const& how, std::int64_t samples, std::int64_t parts,
                      Policies const&... policies) {
  watchdog const watch(name);
  std::vector<std::string> found(static_cast<std::size_t>(ranks));
  launch(comm::decorate(comm::threads{.ranks = ranks}, comm::counted{}), [&](auto& world) {
    auto trainer = make_trainer(meshes::model, optim::adamw{.learning_rate = 1e-3}, world, how, policies...);
    auto const planned = plan(trainer, {.samples = samples, .micro_batches = parts});
    comm::traffic_table before, after;
    trainer.on_step([&](step_report const& done) { (done.step < 2 ? before : after) = world.counts(); });
    trainer.fit(meshes::twenty_steps.data, {.steps = 9, .batch = samples, .micro_batches = parts, .stop_after = 3});
    found[static_cast<std::size_t>(world.rank())] = plan_differences(trainer, planned, before, after);
  });
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    INFO(name << ", rank " << rank);
    CHECK(found[rank] == "");
  }
}

}  // namespace

TEST_CASE("bytes and memory of a step equal the plan, under every mesh of 1 to 4 ranks and of 8", "[train]") {
  for (int const ranks : {1, 2, 3, 4, 8}) {
    meshes::for_each_mesh(ranks, [&](std::string const& name, auto const& how) {
      if (ranks == 3) return planned_is_found(name, ranks, how, 6, 3);
      planned_is_found(name, ranks, how, 8, ranks == 8 ? 8 : 4);
    });
  }
}

TEST_CASE("a plan is right for uneven micro-batches and ranks without any", "[train]") {
  planned_is_found("data=3, 7 samples", 3, parallel::data{.bucket_bytes = 4096}, 7, 5);
  planned_is_found("data=4, 3 samples", 4, parallel::data{}, 3, 4);
  planned_is_found("zero1=2, 5 samples", 2, parallel::zero<1>{}, 5, 3);
  planned_is_found("data=2,tensor=2, 7 samples", 4,
                   parallel::mesh{parallel::data{.ways = 2}, parallel::tensor{.ways = 2}, parallel::sequence{}}, 7, 3);
  planned_is_found("pipeline=3, 7 samples", 3, parallel::pipeline<>{}, 7, 3);
}

TEST_CASE("a plan is right for other precisions, for compressed gradients and in reproducible mode", "[train]") {
  planned_is_found("zero1 bf16", 2, parallel::zero<1>{}, 8, 4, precision::bf16{});
  planned_is_found("zero3 bf16", 2, parallel::zero<3>{.bucket_bytes = 4096}, 8, 4, precision::bf16{});
  planned_is_found("tensor bf16", 2, parallel::mesh{parallel::tensor{.ways = 2}, parallel::sequence{}}, 8, 4,
                   precision::bf16{});
  planned_is_found("pipeline bf16", 2, parallel::pipeline<schedule::zb_h1>{}, 8, 4, precision::bf16{});
  planned_is_found("data cast", 2, parallel::data{}, 8, 4, compression::cast<bf16>{});
  planned_is_found("data top-k", 3, parallel::data{}, 6, 3, compression::top_k{.ratio = 0.1F});
  planned_is_found("zero1 top-k", 2, parallel::zero<1>{}, 8, 4, compression::top_k{.ratio = 0.1F});
  planned_is_found("data error feedback", 2, parallel::data{.bucket_bytes = 4096}, 8, 4,
                   compression::error_feedback<compression::top_k>{});
  planned_is_found("data power_sgd", 3, parallel::data{.bucket_bytes = 4096}, 6, 3, compression::power_sgd{.rank = 2});
  planned_is_found("zero1 power_sgd", 4, parallel::zero<1>{.bucket_bytes = 4096}, 8, 4,
                   compression::power_sgd{.rank = 2});
  planned_is_found("pipeline power_sgd", 4,
                   parallel::mesh{parallel::data{.ways = 2}, parallel::pipeline<>{.stages = 2}}, 8, 4,
                   compression::power_sgd{.rank = 2});
  planned_is_found("reproducible data", 2, parallel::data{.reproducible = true}, 8, 8);
  planned_is_found("reproducible zero2", 4, parallel::zero<2>{.reproducible = true}, 8, 8);
}

TEST_CASE("a plan assumes equally used experts; everything that does not depend on that is exact", "[train]") {
  watchdog const watch("plan of experts");
  planned_is_found("expert=2 without experts", 2, parallel::expert{}, 8, 4);
  nn::gpt model{.vocabulary = 64, .context = 16, .layers = 3, .heads = 2, .channels = 16, .experts = 4};
  auto const how = parallel::mesh{parallel::data{.ways = 2}, parallel::expert{.ways = 2}};
  auto const paper = plan_for({.samples = 8, .ranks = 4}, model, optim::adamw{}, how);
  // Three layers, each dispatched and returned, forward and backward: half of 2 x 16 rows, 2 choices, 16 floats.
  auto const& traded = paper.sent[comm::collective::all_to_all];
  CHECK(traded.calls == 12);
  CHECK(traded.bytes == 12 * (2 * 16 * 2 / 2) * 16 * sizeof(float));
  launch(comm::decorate(comm::threads{.ranks = 4}, comm::counted{}), [&](auto& world) {
    auto trainer = make_trainer(model, optim::adamw{}, world, how);
    comm::traffic_table before, after;
    trainer.on_step([&](step_report const& done) { (done.step < 1 ? before : after) = world.counts(); });
    trainer.fit(toy::text_for(model, 8), {.steps = 2, .batch = 8});
    auto const here = plan(trainer, {.samples = 8});
    auto const memory = trainer.exchange().memory();
    for (int kind = 0; kind < comm::collective_kinds; ++kind) {
      auto const was = after.by_operation[kind].calls - before.by_operation[kind].calls;
      auto const bytes = after.by_operation[kind].bytes - before.by_operation[kind].bytes;
      bool const routed = static_cast<comm::collective>(kind) == comm::collective::all_to_all;
      bool const exact = here.sent.by_operation[kind].calls == was &&
                         (routed || here.sent.by_operation[kind].bytes == bytes) &&
                         here.memory.parameters == memory.parameters && here.memory.gradients == memory.gradients;
      if (!exact) throw numeric_error(text("kind ", kind, " on rank ", world.rank()), {world.rank(), "plan"});
    }
  });
}

TEST_CASE("a plan needs no world, and equals that of a trainer which only sends messages", "[train]") {
  using parallel::zero;
  auto const how = parallel::mesh{parallel::data{.ways = 2}, parallel::pipeline<schedule::gpipe>{.stages = 2},
                                  parallel::tensor{.ways = 1}};
  std::vector<training_plan> plans(4);
  launch(comm::threads{.ranks = 4}, [&](auto& world) {
    auto const trainer = make_trainer(meshes::model, optim::adamw{}, world, how);
    plans[static_cast<std::size_t>(world.rank())] = plan(trainer, {.samples = 8, .micro_batches = 8});
  });
  for (int rank = 0; rank < 4; ++rank) {
    auto const paper =
        plan_for({.samples = 8, .micro_batches = 8, .ranks = 4, .rank = rank}, meshes::model, optim::adamw{}, how);
    auto const& real = plans[static_cast<std::size_t>(rank)];
    CHECK(to_string(paper) == to_string(real));
    CHECK(paper.sent == real.sent);
    CHECK(paper.bubble == Approx(1.0 / (4 + 1)));  // (stages - 1) / (micro-batches + stages - 1)
  }
}

TEST_CASE("memory of ZeRO and bytes of data parallelism follow their formulas at any number of ranks", "[train]") {
  nn::gpt const model{.vocabulary = 512, .context = 64, .layers = 2, .heads = 4, .channels = 128};
  auto const of = [&](int ranks, auto const& how) {
    return plan_for({.samples = ranks, .ranks = ranks}, model, optim::adamw{}, how);
  };
  auto const one = of(1, parallel::zero<1>{});
  CHECK(one.bytes_sent() == 0);
  CHECK(one.memory.optimizer == 2 * one.memory.parameters);
  for (int const ranks : {2, 64, 1024}) {
    auto const first = of(ranks, parallel::zero<1>{.bucket_bytes = 1 << 30});
    auto const second = of(ranks, parallel::zero<2>{.bucket_bytes = 1 << 30});
    auto const third = of(ranks, parallel::zero<3>{.bucket_bytes = 1 << 30});
    CHECK(first.memory.optimizer * ranks == 2 * first.memory.parameters);
    CHECK(first.memory.gradients >= first.memory.parameters);
    CHECK(second.memory.gradients * ranks >= second.memory.parameters);
    CHECK(second.memory.gradients < first.memory.gradients);
    CHECK(third.memory.parameters * ranks <= second.memory.parameters * 2 + ranks * 4096 * 8);
    auto const scattered = first.sent[comm::collective::reduce_scatter].bytes;
    CHECK(scattered * static_cast<std::uint64_t>(ranks) ==
          static_cast<std::uint64_t>(first.memory.parameters) * static_cast<std::uint64_t>(ranks - 1));
  }
}

TEST_CASE("a plan contains operations and time", "[train]") {
  nn::mlp const model{.inputs = 8, .hidden = {16}, .outputs = 4};
  auto const paper = plan_for({.samples = 32, .flops = 1e6, .bandwidth = 1e6, .latency = 0.5, .ranks = 2}, model,
                              optim::sgd{}, parallel::data{});
  // Forward and weight gradients of both layers, the input gradient of the second.
  CHECK(paper.flops == 2.0 * 16 * (2 * 8 * 16 + 3 * 16 * 4));
  CHECK(paper.computing == Approx(paper.flops / 1e6));
  CHECK(paper.latencies > 0);
  CHECK(paper.sending ==
        Approx(static_cast<double>(paper.bytes_sent()) / 1e6 + 0.5 * static_cast<double>(paper.latencies)));
  // With 1024 times as many ranks each call has ten times as many latencies, though a thousand times as many messages.
  auto const many = plan_for({.samples = 2048, .latency = 0.5, .ranks = 2048}, model, optim::sgd{}, parallel::data{});
  CHECK(many.latencies >= 11 * paper.latencies);
  CHECK(many.latencies <= 22 * paper.latencies);
  CHECK(many.messages_sent() == 2047 * paper.messages_sent());
  CHECK(paper.step_at_best == Approx(paper.sending));
  CHECK(paper.step_at_worst == Approx(paper.sending + paper.computing));
  CHECK(paper.bubble == 0);
}

TEST_CASE("a GPT's unit costs equal the operations of a plan", "[train]") {
  nn::gpt const plain{.vocabulary = 40, .context = 12, .layers = 1, .heads = 2, .channels = 16};
  auto const with = [&](auto&& change) {
    auto model = plain;
    change(model);
    return model;
  };
  auto const deep = with([](nn::gpt& m) { m.layers = 3; });
  auto const wordy = with([](nn::gpt& m) { m.vocabulary = 90; });
  auto const checkpointed = with([](nn::gpt& m) { m.checkpointed = true; });
  auto const mixed = with([](nn::gpt& m) { m.experts = 8; });
  for (auto const& model : {plain, deep, wordy, checkpointed, mixed}) {
    INFO(to_string(model));
    auto const costs = model.unit_costs();
    REQUIRE(costs.size() == static_cast<std::size_t>(model.layers + 2));
    double a_token = 0;
    for (auto const each : costs) a_token += each;
    CHECK(plan_for({.samples = 4}, model, optim::sgd{}).flops == 4.0 * 12 * a_token);
  }
  CHECK(plain.unit_costs().front() == 0);
  CHECK(plain.unit_costs().back() == 6.0 * 16 * 40);
}

TEST_CASE("a plan for a user's model gets the shape of samples from a dataset", "[train]") {
  launch(comm::self{}, [](auto& world) {
    auto const trainer = make_trainer(nn::mlp{.hidden = {8}}, optim::sgd{}, world);
    auto const data = data::function([](float x) { return x; }, {.samples = 35});
    CHECK(to_string(plan(trainer, data)) == to_string(plan(trainer)));
  });
}

TEST_CASE("a rank in host memory is planned with 10^12 operations a second unless another number is given", "[train]") {
  auto const planned = plan_for({.samples = 4}, meshes::model, optim::adamw{});
  CHECK(planned.computing == Approx(planned.flops / 1e12));
  CHECK(planned.rates.flops == 0);
  CHECK(!contains(to_string(planned), "device"));
}

TEST_CASE("plans that cannot be made are refused in one sentence", "[train]") {
  auto const refused = [](plan_options const& options, auto const&... policies) {
    return sentence_of<config_error>(
        [&] { static_cast<void>(plan_for(options, meshes::model, optim::adamw{}, policies...)); });
  };
  CHECK(refused({.ranks = 2, .rank = 2}) == "trireme::plan_for: there is no rank 2 in a world of 2");
  CHECK(refused({.samples = 0}).starts_with("trireme::plan: a step of 0 samples"));
  CHECK(refused({.flops = -1}).starts_with("trireme::plan: .flops = -1"));
  CHECK(refused({.bandwidth = 0}).starts_with("trireme::plan: .flops = 0, .bandwidth = 0"));
  CHECK(refused({.ranks = 3}, parallel::mesh{parallel::tensor{.ways = 2}}).starts_with("trireme::parallel::mesh"));
  CHECK(refused({.samples = 8, .micro_batches = 3, .ranks = 2}, parallel::zero<2>{})
            .starts_with("trireme::plan: 8 samples in 3 micro-batches for 2 replicas"));
}
