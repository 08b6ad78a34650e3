// test-sanitize: none
#include "trireme/train/sweep.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

constexpr nn::gpt model{.vocabulary = 23, .context = 8, .layers = 3, .heads = 2, .channels = 16};

toy::text tokens() { return toy::text_for(model, 24); }

/// The rows that rank 0 gets, after a check that all get the same.
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
  CHECK(rows[2].bubble == Approx(1.0 / 3));  // one stage more than one, two micro-batches a replica

  CHECK(rows[3].name == "zero1,pipeline=3:1f1b");
  CHECK(rows[3].refused.starts_with("trireme::parallel::mesh"));
  auto const table = to_string(rows);
  CHECK(table.find("zero1,pipeline=2:1f1b | ") != std::string::npos);
  CHECK(table.find(rows[3].refused) != std::string::npos);
}

TEST_CASE("a sweep takes types alone, and any policies; it believes the rates that it is told", "[train]") {
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

TEST_CASE("a sweep of too few steps is refused", "[train]") {
  comm::self_world self;
  auto const data = tokens();
  CHECK_THROWS_WITH(sweep<strategies<parallel::data>>(model, data, self, {.steps = 2}),
                    "trireme::sweep: 2 steps of 32 samples; the first two are not timed: give at least three, of one "
                    "sample");
}
