// test-sanitize: none
#include <cmath>
#include <vector>

#include "../formats/scratch.hpp"
#include "../support/training.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/data/function.hpp"
#include "trireme/nn/mlp.hpp"

using namespace trireme;

namespace {

/// Everything a trainer does, in memory that faults when it is accessed: returning means success.
template <class Model, class Data, class Features, class... Policies>
void live_a_whole_life(Model const& model, Data const& data, Features const& features, Policies... policies) {
  scratch directory;
  auto const life = [&](auto& world) {
    auto dry = comm::in_space<phantom>(world);
    auto trainer = make_trainer(model, toy::adaptive, dry, policies...);
    static_assert(std::is_same_v<typename decltype(trainer)::space, phantom>);
    auto const place = directory / (world.size() == 1 ? "alone" : "together");  // each is a run of its own
    trainer.initialise(3);
    auto const report = trainer.fit(data, {.steps = 3, .batch = 10, .micro_batches = 4});
    auto const loss = trainer.evaluate(data);
    auto const outputs = trainer.predict(features);
    trainer.save(place);
    auto const hash = trainer.state_hash();
    trainer.load(place);
    auto const again = trainer.state_hash();
    if (world.rank() != 0) return;
    CHECK(report.steps == 3);
    CHECK(loss == 0);
    CHECK(outputs.size() > 0);
    CHECK(again == hash);
  };
  launch(comm::threads{.ranks = 2}, life);
  launch(comm::self{}, life);
}

template <class... Policies>
void as_a_gpt(Policies... policies) {
  std::vector<std::int32_t> const tokens(24, 1);
  live_a_whole_life(toy::gpt, toy::text{}, tensor_view<std::int32_t const>(tokens.data(), {2, 12}), policies...);
}
template <class... Policies>
void as_an_mlp(Policies... policies) {
  auto const data = data::function([](float x) { return x; }, {.samples = 35});
  std::vector<float> const points(7, 0.5F);
  live_a_whole_life(nn::mlp{.hidden = {8, 8}}, data, tensor_view<float const>(points.data(), {7, 1}), policies...);
}

}  // namespace

TEST_CASE("a whole run of a GPT accesses no tensor outside ops and comm", "[train][phantom]") {
  as_a_gpt();
  as_a_gpt(parallel::zero<1>{.bucket_bytes = 8192});
}

TEST_CASE("a whole run of a GPT in bfloat16 accesses no tensor outside ops and comm", "[train][phantom]") {
  as_a_gpt(precision::bf16{});
  as_a_gpt(precision::bf16{}, parallel::zero<1>{});
}

TEST_CASE("a whole run of a perceptron with compressed gradients accesses no tensor outside ops and comm",
          "[train][phantom]") {
  compression::error_feedback<compression::top_k> const sparse{.inner = {.ratio = 0.1F}};
  as_an_mlp();
  as_an_mlp(sparse);
  as_an_mlp(parallel::zero<1>{}, sparse);
  as_an_mlp(parallel::zero<1>{}, compression::cast<bf16>{});
}
