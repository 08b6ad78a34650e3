#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/nn/batch_norm.hpp"
#include "trireme/nn/vit.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

/// A model of numbers with layers that differ between training and evaluation; one unit for each of two stages with
/// return.
struct mixed {
  using policy_category = slot::model;
  friend bool operator==(mixed const&, mixed const&) = default;

  void units(auto&& emit) const {
    using namespace nn;
    initial const start{initial::distribution::normal, 0.5};
    auto const to = [&](std::int64_t outputs) { return linear{.outputs = outputs, .start = start}; };
    emit(block{"in", 0, chain(features{6}, named("a", to(8)), tanh())});
    emit(block{"norms", 8,
               chain(named("b", batch_norm{.epsilon = 0.1}),
                     residual(named("n", layer_norm{}), named("c", to(12)), gelu(), named("d", to(8)), dropout{0.3}))});
    emit(checkpointed_unit{
        block{"gates", 8, chain(product(chain(named("e", to(6)), silu()), named("f", to(6))), named("g", to(8)))}});
    emit(block{"experts", 8, residual(named("e", experts{.hidden = 4, .count = 2, .chosen = 2, .balance = 0.1}))});
    emit(block{"out", 8, chain(named("f", to(3)), loss::cross_entropy{.ignored = 2})});
  }
};
std::string to_string(mixed const&) { return "mixed"; }

/// Samples of `each` numbers on a grid of 1/128, so that steps of the differences are exact in float; some samples of
/// class 2.
struct points {
  std::int64_t each;
  std::vector<float> x;
  std::vector<std::int32_t> y;
  points(std::int64_t n, std::int64_t width) : each(width) {
    for (std::int64_t i = 0; i < n * width; ++i)
      x.push_back(static_cast<float>(std::round(100 * std::sin(1.7 * static_cast<double>(i * i)))) / 128);
    for (std::int64_t i = 0; i < n; ++i) y.push_back(static_cast<std::int32_t>(i % 3));
  }
  [[nodiscard]] auto inputs(std::int64_t first, std::int64_t n) const {
    return tensor_view<float const>(x.data() + first * each, {n, each});
  }
  [[nodiscard]] auto targets(std::int64_t first, std::int64_t n) const {
    return tensor_view<std::int32_t const>(y.data() + first, {n});
  }
  [[nodiscard]] samples part(std::int64_t first, std::int64_t n) const {
    return make_samples(inputs(first, n), targets(first, n));
  }
  [[nodiscard]] auto data(std::int64_t n) const { return data::in_memory(inputs(0, n), targets(0, n)); }
};

/// The largest difference from central differences of evaluate(), relative to the largest gradient.
template <class Trainer>
double error_of(Trainer& trainer, points some, std::int64_t n, std::size_t every) {
  auto const found = trainer.input_gradient(some.part(0, n));
  REQUIRE(found.extents() == some.part(0, n).inputs.extents);
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(found.size()); i += every) {
    auto const x = some.x[i];
    auto const at = [&](float steps) {
      some.x[i] = x + steps / 64;
      auto const loss = trainer.evaluate(some.data(n), n);
      some.x[i] = x;
      return loss;
    };
    auto const expected = 64 * (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / 12;
    worst = std::max(worst, std::abs(static_cast<double>(found[static_cast<std::int64_t>(i)]) - expected));
    largest = std::max(largest, std::abs(expected));
  }
  return worst / largest;
}

/// The result of input_gradient() on this rank after two steps, and whether the third step equals that of a trainer
/// without it.
struct outcome {
  std::vector<double> gradient;
  bool untouched = false;
};
template <class Comm, class... Policies>
outcome look(Comm& world, points const& some, std::int64_t first, std::int64_t n, Policies const&... policies) {
  auto const data = some.data(16);
  outcome out;
  auto const run = [&](bool asks) {
    auto trainer = make_trainer(mixed{}, optim::adamw{.learning_rate = 1e-2}, world, precision::fp64{}, policies...);
    trainer.fit(data, {.steps = 2, .batch = 8, .micro_batches = 4});
    auto const before = trainer.state_hash();
    if (asks) {
      auto const found = trainer.input_gradient(some.part(first, n));
      out.gradient.assign(found.span().begin(), found.span().end());
    }
    bool const same = trainer.state_hash() == before;
    auto const loss = trainer.fit(data, {.steps = 3, .batch = 8, .micro_batches = 4}).last_loss;
    return std::tuple(same, loss, trainer.state_hash());
  };
  auto const with = run(true);
  out.untouched = std::get<0>(with) && with == run(false);
  return out;
}

double distance(std::vector<double> const& a, std::vector<double> const& b) {
  if (a.size() != b.size() || a.empty()) return 1;
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return most / largest;
}

/// A plain model of one parameter: loss a * (sum of inputs).
struct plain_sum {
  using policy_category = slot::model;
  float a = 3, da = 0;
  void visit_parameters(auto&& visit) {
    visit("a", tensor_view<float>(&a, shape{1}), tensor_view<float>(&da, shape{1}));
  }
  double forward(samples const&) { return 0; }
  void backward(auto&& ready) { ready("a"); }
  tensor<float> input_gradient(samples const& batch) const {
    tensor<float> out(batch.inputs.extents);
    std::fill(out.span().begin(), out.span().end(), a);
    return out;
  }
};

}  // namespace

TEST_CASE("gradients of inputs agree with central differences", "[train][input_gradient]") {
  comm::self_world world;
  points const few(16, 6);
  auto trainer = make_trainer(mixed{}, optim::adamw{.learning_rate = 1e-2}, world, precision::fp64{});
  trainer.fit(few.data(16), {.steps = 3, .batch = 8, .micro_batches = 2});
  CHECK(error_of(trainer, few, 5, 1) < 1e-6);
  CHECK(error_of(trainer, few, 1, 1) < 1e-6);

  nn::vit const model{.images = {8, 8, 2}, .side = 4, .classes = 3, .layers = 2, .heads = 2, .channels = 8};
  points const images(8, 8 * 8 * 2);
  auto seer = make_trainer(model, optim::adamw{.learning_rate = 1e-2}, world, precision::fp64{});
  seer.fit(images.data(8), {.steps = 3, .batch = 4});
  CHECK(error_of(seer, images, 3, 11) < 1e-6);
}

TEST_CASE("gradients of inputs are equal under every mesh, and do not affect training", "[train][input_gradient]") {
  watchdog const guard("gradients of inputs on several ranks", std::chrono::seconds(100));
  points const some(16, 6);
  comm::self_world alone;
  auto const serial = look(alone, some, 0, 6);
  CHECK(serial.untouched);
  std::vector<outcome> other(2);  // for the samples of each of two data ranks
  for (std::int64_t r = 0; r < 2; ++r) other[static_cast<std::size_t>(r)] = look(alone, some, 6 + r * 4, 4 - r);

  constexpr int ways = 9;
  outcome all[2][ways];
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    using namespace parallel;
    auto& here = all[world.rank()];
    auto const first = 6 + world.rank() * 4, n = 4 - world.rank();
    here[0] = look(world, some, first, n);
    here[1] = look(world, some, first, n, zero<3>{});
    here[2] = look(world, some, first, n, mesh{expert{.ways = 2}});
    here[3] = look(world, some, 0, 6, mesh{parallel::tensor{.ways = 2}});
    here[4] = look(world, some, 0, 6, mesh{parallel::tensor{.ways = 2}, sequence{}});
    here[5] = look(world, some, 0, 6, mesh{pipeline<schedule::one_f_one_b>{.stages = 2}});
    here[6] = look(world, some, 0, 6, mesh{pipeline<schedule::zb_h1>{.stages = 2}});
    here[7] = look(world, some, 0, 6, mesh{pipeline<schedule::zb_v>{.stages = 2}});
    here[8] = look(world, some, 0, 6, mesh{pipeline<schedule::dual_pipe>{.stages = 2}});
  });
  for (int r = 0; r < 2; ++r) {
    for (int w = 0; w < ways; ++w) {
      INFO("rank " << r << ", way " << w);
      auto const& expected = w < 3 ? other[static_cast<std::size_t>(r)] : serial;
      CHECK(all[r][w].untouched);
      CHECK(distance(all[r][w].gradient, expected.gradient) < 1e-6);
    }
  }
}

TEST_CASE("gradients of inputs work in half precision, and for plain models that have them",
          "[train][input_gradient]") {
  comm::self_world world;
  points const some(8, 6);
  auto exact = make_trainer(mixed{}, optim::sgd{}, world);
  auto rough = make_trainer(mixed{}, optim::sgd{}, world, precision::fp16{});
  auto const a = exact.input_gradient(some.part(0, 8)), b = rough.input_gradient(some.part(0, 8));
  CHECK(distance({b.span().begin(), b.span().end()}, {a.span().begin(), a.span().end()}) < 0.03);

  auto plain = make_trainer(plain_sum{}, optim::sgd{}, world);
  CHECK(plain.input_gradient(some.part(0, 2))[11] == 3);
  auto const none = make_samples(tensor_view<float const>(some.x.data(), {0, 6}),
                                 tensor_view<std::int32_t const>(some.y.data(), {0}));
  CHECK(contains(sentence_of([&] { static_cast<void>(exact.input_gradient(none)); }), "no samples"));
  auto const words = make_samples(some.targets(0, 4), some.targets(0, 4));
  CHECK(contains(sentence_of([&] { static_cast<void>(exact.input_gradient(words)); }), "have no gradients"));
}
