// test-sanitize: none
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/trireme.hpp"

// A precision with a run state: the loss scale of fp16.

using namespace trireme;

namespace {

nn::mlp const model{.hidden = {24}};
auto const sine = data::function([](float x) { return std::sin(x); }, {.samples = 96});
optim::adamw const adaptive{.learning_rate = 1e-2, .clip = 0.5};

struct outcome {
  std::vector<double> losses, norms;
  std::vector<bool> skipped;
  std::uint64_t hash = 0;
};
template <class Precision, class Parallel = parallel::data>
outcome train(int ranks, Precision const& precision, std::int64_t steps, std::string const& load = {},
              std::string const& save = {}, Parallel const& parallel = {}) {
  outcome out;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer = make_trainer(model, adaptive, world, precision, parallel);
    trainer.initialise(3);
    if (!load.empty()) trainer.load(load);
    outcome mine;
    trainer.on_step([&](step_report const& done) {
      mine.losses.push_back(done.loss);
      mine.norms.push_back(done.norm);
      mine.skipped.push_back(done.skipped);
    });
    trainer.fit(sine, {.steps = 60, .batch = 16, .stop_after = steps});
    if (!save.empty()) trainer.save(save);
    mine.hash = trainer.state_hash();
    if (world.rank() == 0) out = std::move(mine);
  });
  return out;
}

}  // namespace

TEST_CASE("fp16 trains as fp32 does within its tolerance", "[train][precision]") {
  watchdog const guard("fp16");
  for (int const ranks : {1, 2, 3}) {
    auto const half = train(ranks, precision::fp16{.first_scale = 1024}, 40);
    auto const whole = train(ranks, precision::fp32{}, 40);
    for (std::size_t i = 0; i < 40; ++i) {
      CHECK(!half.skipped[i]);
      CHECK(std::abs(half.losses[i] - whole.losses[i]) < 0.02);
    }
    CHECK(half.norms[0] == Approx(whole.norms[0]).epsilon(5e-3));  // the norm is without the scale
  }
  CHECK(train(2, precision::fp16{}, 40, {}, {}, parallel::zero<2>{}).hash ==
        train(2, precision::fp16{}, 40, {}, {}, parallel::data{}).hash);
}

TEST_CASE("the search for a loss scale may skip any number of steps without an error", "[train][precision]") {
  watchdog const guard("a scale that is too large");
  auto const out = train(2, precision::fp16{.first_scale = precision::fp16::largest_scale, .growth_steps = 8}, 60);
  CHECK(out.skipped[0]);
  std::size_t first = 0;
  while (out.skipped[first]) ++first;
  CHECK(first >= 5);
  std::size_t skips_later = 0;
  for (auto i = first; i < out.skipped.size(); ++i) skips_later += out.skipped[i] ? 1 : 0;
  CHECK(skips_later >= 1);  // the scale has grown until it was too large again
  CHECK(skips_later <= 7);
  CHECK(out.losses.back() < 0.5 * out.losses.front());
}

TEST_CASE("the loss scale is saved: a run resumes with it bit for bit", "[train][precision][checkpoint]") {
  watchdog const guard("a saved scale");
  precision::fp16 const searching{.first_scale = precision::fp16::largest_scale, .growth_steps = 6};
  scratch folder;
  auto const saved = train(2, searching, 17, {}, folder.path());
  CHECK(train(2, searching, 17, folder.path()).hash == saved.hash);
  CHECK(train(2, searching, 40, folder.path()).hash == train(2, searching, 40).hash);
}

namespace {

/// y = slope x + shift, stored in float. The model casts by itself: the gradient of each output is a float16, as in a
/// backward pass in float16, and on rank 1 one of them is infinite from a scale of 2^10 on.
struct cast_line {
  int rank = 0;
  std::vector<float> values{0.5F, 0};
  std::vector<float> gradient{0, 0};
  std::vector<float> inputs{}, errors{};
  dtype told = dtype::f32;

  void visit_parameters(auto&& visit) { visit("line", tensor_view{values}, tensor_view{gradient}); }
  void compute_in(dtype type) { told = type; }
  double forward(samples const& batch) {
    auto const x = batch.inputs.as<float>(), y = batch.targets.as<float>();
    inputs.assign(x.span().begin(), x.span().end());
    errors.clear();
    double loss = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      errors.push_back(values[0] * x[i] + values[1] - y[i]);
      loss += static_cast<double>(errors.back() * errors.back()) / static_cast<double>(x.size());
    }
    return loss;
  }
  void backward(auto&& ready, double scale) {
    gradient = {0, 0};
    bool const narrow = told == dtype::f16;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      auto slope = 2 * errors[i] / static_cast<float>(inputs.size()) * static_cast<float>(scale);
      if (narrow) slope = static_cast<float>(float16(slope));
      if (narrow && rank == 1 && scale >= 1024) slope = std::numeric_limits<float>::infinity();
      gradient[0] += slope * inputs[i], gradient[1] += slope;
    }
    ready("line");
  }
};

template <class Precision, class Parallel = parallel::data>
std::vector<outcome> cast(Precision const& precision, std::int64_t steps, std::string const& load = {},
                          std::string const& save = {}, Parallel const& parallel = {}) {
  auto const line = data::function([](float x) { return 3 * x + 1; }, {.samples = 64});
  std::vector<outcome> all(2);
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    cast_line own{.rank = world.rank()};
    auto trainer = make_trainer(own, optim::adamw{.learning_rate = 5e-2}, world, precision, parallel);
    if (!load.empty()) trainer.load(load);
    auto& mine = all[static_cast<std::size_t>(world.rank())];
    trainer.on_step([&](step_report const& done) {
      mine.losses.push_back(done.loss);
      mine.skipped.push_back(done.skipped);
    });
    trainer.fit(line, {.steps = 200, .batch = 16, .stop_after = steps});
    if (!save.empty()) trainer.save(save);
    mine.hash = trainer.state_hash();
    if (own.told != dtype_of<typename Precision::compute>) throw error("the model was told other numbers");
  });
  return all;
}

}  // namespace

TEST_CASE("a plain model that casts by itself is trained with a loss scale", "[train][precision][plain_model]") {
  watchdog const guard("a plain model in fp16");
  auto const whole = cast(precision::fp32{}, 200);
  auto const half = cast(precision::fp16{.first_scale = 4096, .growth_steps = 20}, 200);
  CHECK(half[1].skipped == half[0].skipped);  // though only rank 1 has a number that is not finite
  CHECK(half[0].skipped[2]);                  // 4096, 2048, 1024, and then 512
  CHECK(!half[0].skipped[3]);
  CHECK(half[0].skipped[23]);  // after 20 good steps it grows to 1024
  CHECK(half[0].losses.back() < 0.01 * half[0].losses.front());
  CHECK(half[0].losses.back() == Approx(whole[0].losses.back()).margin(5e-3));
  precision::fp16 const searching{.first_scale = 4096, .growth_steps = 20};
  CHECK(cast(searching, 200, {}, {}, parallel::zero<1>{})[0].hash == half[0].hash);
  CHECK(cast(searching, 200, {}, {}, parallel::zero<2>{})[0].hash == half[0].hash);
  scratch folder;
  cast(searching, 30, {}, folder.path());
  CHECK(cast(searching, 200, folder.path())[0].hash == half[0].hash);
}

TEST_CASE("an initial loss scale that is not a power of two is refused", "[train][precision]") {
  for (double const wrong : {0.0, -2.0, 3.0, 1000.0, 33554432.0, std::nan("")}) {
    CHECK(contains(sentence_of([&] { train(1, precision::fp16{.first_scale = wrong}, 1); }),
                   "the scale is a power of two from 1 to 16777216"));
  }
}
