// test-sanitize: none
#include "trireme/train/sweep.hpp"

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

constexpr nn::gpt model{.vocabulary = 23, .context = 8, .layers = 3, .heads = 2, .channels = 16};

toy::text tokens() { return toy::text_for(model, 24); }

/// The rows of rank 0, after a check that all ranks have the same.
template <class Sweep>
std::vector<sweep_row> on_threads(int ranks, Sweep&& sweep) {
  std::vector<std::vector<sweep_row>> all(static_cast<std::size_t>(ranks));
  launch(comm::threads{.ranks = ranks},
         [&](auto& world) { all[static_cast<std::size_t>(world.rank())] = sweep(world); });
  for (auto const& rows : all) CHECK(to_string(rows) == to_string(all[0]));
  return all[0];
}

}  // namespace

TEST_CASE("a sweep trains one model with each strategy, and finds the bytes and the memory of the plans", "[train]") {
  watchdog const watch("a sweep");
  auto const data = tokens();
  auto const rows = on_threads(4, [&](auto& world) {
    strategies const list{parallel::data{}, parallel::zero<3>{},
                          parallel::mesh{parallel::zero<1>{}, parallel::pipeline<>{.stages = 2}},
                          parallel::mesh{parallel::zero<1>{}, parallel::pipeline<>{.stages = 3}}};
    return sweep(list, model, data, world, {.steps = 5, .batch = 8, .micro_batches = 4},
                 optim::sgd{.learning_rate = 0.1});
  });
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].name == "data");
  CHECK(rows[1].name == "zero3");
  CHECK(rows[2].name == "zero1,pipeline=2:1f1b");
  for (std::size_t i = 0; i < 3; ++i) {
    auto const& row = rows[i];
    INFO(row.name << ": " << row.refused);
    CHECK(row.refused.empty());
    CHECK(row.bytes > 0);
    CHECK(row.bytes == row.planned_bytes);
    CHECK((row.memory == row.planned));
    CHECK(row.last_loss < row.first_loss);
    CHECK(row.first_loss == Approx(rows[0].first_loss).epsilon(1e-5));
    CHECK(row.last_loss == Approx(rows[0].last_loss).epsilon(1e-5));
    CHECK(row.seconds > 0);
    CHECK(row.at_best > 0);
    CHECK(row.at_best <= row.at_worst);
  }
  CHECK(rows[1].memory.parameters < rows[0].memory.parameters);
  CHECK(rows[2].bubble == Approx(1.0 / 3));  // (stages - 1) / (micro-batches per replica + stages - 1)

  CHECK(rows[3].name == "zero1,pipeline=3:1f1b");
  CHECK(rows[3].refused.starts_with("trireme::parallel::mesh"));
  auto const table = to_string(rows);
  CHECK(table.find("zero1,pipeline=2:1f1b | ") != std::string::npos);
  CHECK(table.find(rows[3].refused) != std::string::npos);
}

TEST_CASE("a sweep accepts types alone, and any policies, and uses given rates", "[train]") {
  watchdog const watch("a sweep of types");
  auto const data = tokens();
  sweep_options const options{.steps = 3, .batch = 8, .flops = 1e6, .bandwidth = 1e6, .latency = 1e-3};
  auto const rows = on_threads(2, [&](auto& world) {
    return sweep<strategies<parallel::data>>(model, data, world, options, precision::bf16{}, compression::cast<bf16>{});
  });
  REQUIRE(rows.size() == 1);
  auto const paper = plan_for({.samples = 8, .flops = 1e6, .bandwidth = 1e6, .latency = 1e-3, .ranks = 2}, model,
                              optim::adamw{}, parallel::data{}, precision::bf16{}, compression::cast<bf16>{});
  CHECK(rows[0].at_worst == Approx(paper.step_at_worst));
  CHECK(rows[0].bytes == rows[0].planned_bytes);
}

TEST_CASE("each strategy that diverges gives a row that reports it", "[train]") {
  watchdog const watch("a sweep that diverges");
  auto const data = data::function(+[](float x) { return x; }, {.samples = 64});
  nn::mlp const curve{.inputs = 1, .hidden = {8}, .outputs = 1, .act = ops::activation::relu};
  for (std::int64_t const steps : {6, 30}) {  // the loss is NaN; ten consecutive steps without finite gradients
    auto const rows = on_threads(2, [&](auto& world) {
      return sweep<strategies<parallel::data, parallel::zero<1>>>(
          curve, data, world, {.steps = steps, .batch = 8, .flops = 1e9, .bandwidth = 1e9, .latency = 1e-6},
          optim::sgd{.learning_rate = 1e30, .clip = 0});
    });
    REQUIRE(rows.size() == 2);
    for (auto const& row : rows) {
      INFO(row.refused);
      CHECK(!row.refused.empty());
      CHECK(row.refused.find("finite") != std::string::npos);
    }
  }
}

namespace {

/// Data that no rank can read.
struct broken_disk : toy::text {
  bool memory = false;
  void read(std::span<std::int64_t const>, void*, void*) const {
    if (memory) throw std::bad_alloc();
    throw std::runtime_error("sample 0: the disk is gone");
  }
};

}  // namespace

TEST_CASE("an exception of a strategy is reported in its row, and the sweep goes on", "[train]") {
  watchdog const watch("a sweep that throws");
  for (bool const memory : {false, true}) {
    auto const rows = on_threads(2, [&](auto& world) {
      broken_disk data{tokens()};
      data.memory = memory;
      return sweep<strategies<parallel::data, parallel::zero<1>>>(
          model, data, world, {.steps = 4, .batch = 8, .flops = 1e9, .bandwidth = 1e9, .latency = 1e-6},
          optim::sgd{.learning_rate = 0.1});
    });
    REQUIRE(rows.size() == 2);
    for (auto const& row : rows) {
      CHECK(row.refused ==
            (memory ? "trireme::sweep: not enough memory for this strategy" : "sample 0: the disk is gone"));
    }
  }
}

namespace {

/// Data that one rank cannot read after a number of reads, while `broken` is set.
struct broken_on_one_rank : toy::text {
  std::atomic<bool> const* broken = nullptr;
  bool here = false;
  std::int64_t whole = 0;  ///< reads before the failure
  mutable std::shared_ptr<std::atomic<std::int64_t>> reads = std::make_shared<std::atomic<std::int64_t>>(0);
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    if (here && broken->load() && reads->fetch_add(1) >= whole) throw std::runtime_error("sample 0: the disk is gone");
    toy::text::read(ids, inputs, targets);
  }
};
struct counted_samples {
  std::vector<std::int64_t> count{0};
  void add(tensor_view<float const> outputs, any_view<host> const&) { count[0] += outputs.extent(0); }
  std::span<std::int64_t> counts() { return count; }
};
constexpr std::string_view heard = "rank 1 failed: sample 0: the disk is gone";

/// Training continues normally after a read error of one rank has ended fit() and evaluate() on all of them.
template <class Strategy>
void expect_one_failure(int ranks, Strategy const& strategy) {
  CAPTURE(ranks, to_string(strategy));
  std::atomic<bool> broken{false};
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    broken_on_one_rank data{tokens(), &broken, world.rank() == 1, 4};
    auto const train = [&](auto& trainer) {
      return trainer.fit(data, {.steps = 6, .batch = 8, .micro_batches = 4, .check_every = 0});
    };
    optim::sgd const optimizer{.learning_rate = 0.1};
    auto alone = make_trainer(model, optimizer, world, strategy);
    train(alone);
    world.barrier();
    broken = true;
    world.barrier();
    auto trainer = make_trainer(model, optimizer, world, strategy);
    auto const expected = world.rank() == 1 ? "sample 0: the disk is gone" : heard;
    for (int again = 0; again < 2; ++again) CHECK(sentence_of<std::exception>([&] { train(trainer); }) == expected);
    CHECK(trainer.steps() < 6);
    *data.reads = 0;
    data.whole = 0;
    CHECK(sentence_of<std::exception>([&] { static_cast<void>(trainer.evaluate(data, 2)); }) == expected);
    CHECK(sentence_of<std::exception>([&] { static_cast<void>(trainer.evaluate(data, 2, counted_samples{})); }) ==
          expected);
    world.barrier();
    broken = false;
    world.barrier();
    train(trainer);
    CHECK(trainer.state_hash() == alone.state_hash());
    CHECK(trainer.evaluate(data, 2) == alone.evaluate(data, 2));
  });
}

}  // namespace

TEST_CASE("an error of reading on one rank ends fit() and evaluate() on all ranks, and the world stays usable",
          "[train]") {
  watchdog const watch("data that is gone on one rank");
  for (int const ranks : {2, 3}) {
    expect_one_failure(ranks, parallel::data{});
    expect_one_failure(ranks, parallel::zero<3>{});
  }
  expect_one_failure(2, parallel::diloco{.period = 4});
  expect_one_failure(2, parallel::mesh{parallel::tensor{.ways = 2}});
  expect_one_failure(4, parallel::mesh{parallel::zero<1>{}, parallel::pipeline<>{.stages = 2}});
}

namespace {

/// Data of which some samples cannot be read.
struct torn : toy::text {
  std::set<std::int64_t> holes{3, 11};
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    for (auto const id : ids) {
      if (holes.contains(id)) throw std::runtime_error("a hole");
    }
    toy::text::read(ids, inputs, targets);
  }
};

}  // namespace

TEST_CASE("fit() leaves out as many samples as it may, the same for any number of reading threads", "[train]") {
  watchdog const watch("data with holes");
  std::vector<std::uint64_t> hashes;
  for (std::int64_t const workers : {1, 3}) {
    launch(comm::threads{.ranks = 2}, [&](auto& world) {
      torn const data{tokens()};
      auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.1}, world, parallel::data{});
      std::set<std::int64_t> told;
      trainer.on_read_problem([&](data::read_problem const& problem) { told.insert(problem.sample); });
      std::int64_t counted = 0;
      trainer.on_step([&](step_report const& step) {
        CHECK(step.left_out >= counted);
        CHECK(step.waited >= 0);
        counted = step.left_out;
      });
      auto const fit = [&](std::int64_t bad) {
        return trainer.fit(data, {.steps = 9, .batch = 8, .check_every = 0, .workers = workers, .bad_samples = bad});
      };
      CHECK(sentence_of<std::exception>([&] { fit(1); }).find(".bad_samples") != std::string::npos);
      trainer.initialise(5);
      auto const done = fit(2);
      CHECK(done.left_out == 2);  // different ones, of both ranks and three epochs
      CHECK(done.waited <= done.seconds);
      CHECK(done.slowest_read.sample >= 0);
      for (auto const sample : told) CHECK(data.holes.contains(sample));
      auto const hash = trainer.state_hash();
      if (world.rank() == 0) hashes.push_back(hash);
    });
  }
  REQUIRE(hashes.size() == 2);
  CHECK(hashes[0] == hashes[1]);
  CHECK(fit_report{.seconds = 10, .waited = 0.4}.slow_data().empty());
  CHECK(fit_report{.seconds = 1.5, .waited = 0.9}.slow_data().empty());  // nobody waits for less than a second
  CHECK(fit_report{.seconds = 10, .waited = 4, .slowest_read = {.sample = 7, .seconds = 2}}.slow_data() ==
        "steps waited for data 40 % of the time (reading sample 7 takes 2.0 s); raise .workers, or prepare the samples "
        "once, before the training");
}

TEST_CASE("an error of reading on one rank is reported in a row of the sweep, which goes on", "[train]") {
  watchdog const watch("a sweep with data that is gone on one rank");
  for (int const ranks : {2, 3}) {
    for (bool const broken : {true, false}) {
      std::atomic<bool> const is_broken = broken;
      auto const rows = on_threads(ranks, [&](auto& world) {
        broken_on_one_rank const data{tokens(), &is_broken, world.rank() == 1};
        return sweep<strategies<parallel::data, parallel::zero<1>>>(
            model, data, world, {.steps = 4, .batch = 8, .flops = 1e9, .bandwidth = 1e9, .latency = 1e-6},
            optim::sgd{.learning_rate = 0.1});
      });
      REQUIRE(rows.size() == 2);
      for (auto const& row : rows) CHECK(row.refused == (broken ? heard : ""));
    }
  }
}

TEST_CASE("a sweep with impossible numbers is refused", "[train]") {
  comm::self_world self;
  auto const data = tokens();
  CHECK_THROWS_WITH(sweep<strategies<parallel::data>>(model, data, self, {.steps = 2}),
                    "trireme::sweep: 2 steps of 32 samples; give at least three steps, as the first two are not timed, "
                    "and one sample");
  auto const nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::pair<sweep_options, std::string>> const wrong{
      {{.micro_batches = -1}, ".micro_batches is -1; it must be at least 0"},
      {{.flops = -1e9}, ".flops is -1e+09; it must be at least 0, and finite"},
      {{.flops = nan}, ".flops is nan; it must be at least 0, and finite"},
      {{.bandwidth = nan}, ".bandwidth is nan; it must be at least 0, and finite"},
      {{.bandwidth = 1e9, .latency = -1}, ".latency is -1; it must be at least 0, and finite"}};
  for (auto const& [options, sentence] : wrong)
    CHECK_THROWS_WITH(sweep<strategies<parallel::data>>(model, data, self, options), "trireme::sweep: " + sentence);
}
