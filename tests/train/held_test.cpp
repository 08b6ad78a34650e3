// test-sanitize: none
// Every policy sends in its period, and holds, what the plan predicts; and everything in its run state, which
// checkpoints therefore contain, is included in what it reports to hold.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/plan_differences.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

nn::mlp const model{.hidden = {192, 192}};
constexpr std::int64_t values = 4 * (192 + 192 + 192 * 192 + 192 + 192 + 1);  // bytes
auto const sine = data::function([](float x) { return std::sin(x); }, {.samples = 96});

struct found {
  std::int64_t shown = 0;    ///< bytes of the pieces of the run state
  std::int64_t moments = 0;  ///< bytes of the optimizer's
  std::int64_t told = 0;     ///< bytes that the policies report to hold
  std::int64_t period = 0;   ///< steps after which traffic repeats
  std::string differences;   ///< between the plan and the counters
};

template <class... Policies>
found look(int ranks, Policies const&... policies) {
  watchdog const guard("what policies hold");
  std::vector<found> all(static_cast<std::size_t>(ranks));
  launch(comm::decorate(comm::threads{.ranks = ranks}, comm::counted{}), [&](auto& world) {
    auto trainer = make_trainer(model, world, policies...);
    auto const planned = plan(trainer, sine, {.samples = 12});
    auto& mine = all[static_cast<std::size_t>(world.rank())];
    mine.period = planned.steps;
    auto const first = trainer.exchange().settles_after() + planned.steps;
    comm::traffic_table before, after;
    trainer.on_step([&](step_report const& done) {
      if (done.step + 1 == first) before = world.counts();
      if (done.step + 1 == first + planned.steps) after = world.counts();
    });
    trainer.fit(sine, {.steps = first + planned.steps, .batch = 12, .check_every = 0});
    mine.differences = plan_differences(trainer, planned, before, after);
    mine.told =
        planned.memory.parameters + planned.memory.gradients + planned.memory.optimizer + planned.memory.buffers;
    trainer.exchange().visit_state(state_scope::kept, [&](std::string const&, state_location const&, auto view) {
      mine.shown += static_cast<std::int64_t>(view.bytes());
    });
    mine.moments = trainer.moment_bytes();
  });
  for (auto const& each : all) CHECK(each.differences == "");
  return *std::max_element(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.shown < b.shown; });
}

constexpr std::int64_t padding = 4 * 4 * 3 * 1024;  // of slices and buckets: some blocks per rank

/// The additional state of a policy, compared with another one, is in its additional report, up to padding.
void expect_told(found const& with, found const& without, std::int64_t least) {
  CHECK(with.shown - without.shown >= least);  // or the comparison would prove nothing
  CHECK(least > padding);
  CHECK(with.told - without.told >= with.shown - without.shown - padding);
}

optim::adamw const adamw{.learning_rate = 1e-2, .clip = 0.5};

}  // namespace

TEST_CASE("the plan contains what strategies keep and send in their period", "[train][plan]") {
  for (int const ranks : {2, 3}) {
    INFO(ranks << " ranks");
    auto const data = look(ranks, adamw, parallel::data{});
    auto const zero = look(ranks, adamw, parallel::zero<1>{});
    auto const diloco = look(ranks, adamw, parallel::diloco{.period = 4});
    auto const late = look(ranks, adamw, parallel::parameter_server{.staleness = 2});
    CHECK(data.period == 1);
    CHECK(diloco.period == 4);
    CHECK(late.period == 1);
    expect_told(diloco, data, 2 * values);
    expect_told(late, zero, 2 * values / ranks);
  }
}

TEST_CASE("the plan contains the memory of compressors", "[train][plan]") {
  for (int const ranks : {2, 3}) {
    INFO(ranks << " ranks");
    auto const none = look(ranks, adamw);
    auto const some = look(ranks, adamw, compression::top_k{.ratio = 0.1F});
    auto const fed_back = look(ranks, adamw, compression::error_feedback<compression::top_k>{{.ratio = 0.1F}});
    auto const low_rank = look(ranks, adamw, compression::power_sgd{.rank = 2});
    expect_told(fed_back, some, values);
    expect_told(low_rank, none, values - 4096);  // of matrices
    static_cast<void>(look(ranks, adamw, compression::cast<bf16>{}));
  }
}

TEST_CASE("the plan contains the memory of optimizers and precisions", "[train][plan]") {
  CHECK(look(2, optim::sgd{.learning_rate = 0.01, .momentum = 0.9}).moments >= values);
  CHECK(look(2, adamw).moments >= 2 * values);
  CHECK(look(2, optim::lamb{.learning_rate = 0.01}).moments >= 2 * values);
  CHECK(look(2, optim::muon{.learning_rate = 0.01}).moments >= values);
  CHECK(look(2, optim::adafactor{.learning_rate = 0.01}).moments > 0);
  static_cast<void>(look(2, adamw, precision::bf16{}));
  static_cast<void>(look(2, adamw, precision::fp16{}));
}
