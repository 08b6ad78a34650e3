// What the mean of a loss is over, whatever the mesh; and losses of one's own as descriptions.
#include "trireme/nn/losses.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/schedules/schedules.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/testing/gradient_check.hpp"

using namespace trireme;

namespace {

/// Two words beside each other make the next one.
struct small_model {
  using policy_category = slot::model;
  static constexpr bool cuts_context = true;
  nn::loss::cross_entropy loss{};

  void units(auto&& emit) const {
    using namespace nn;
    emit(block{"", 8, 0, chain(named("embed", embedding{.words = 23, .outputs = 8}))});
    emit(block{"layer", 8, 0,
               chain(residual(named("in", linear{.outputs = 12}), gelu(), named("out", linear{.outputs = 8})))});
    emit(block{"", 8, 0, chain(named("head", unembedding{.words = 23}), loss)});
  }
};
std::string to_string(small_model const& m) { return text("small_model{", to_string(m.loss), "}"); }

/// 24 samples of 8 words; sample i has i % 8 targets that are not counted, and target 5 may be another.
struct uneven {
  std::vector<std::int32_t> words = std::vector<std::int32_t>(24 * 8), next = words;
  uneven() {
    for (std::int64_t i = 0; i < 24 * 8; ++i) {
      words[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * i % 23);
      next[static_cast<std::size_t>(i)] = i % 8 < i / 8 % 8 ? -1 : static_cast<std::int32_t>((i * i + 3 * i) % 23);
    }
  }
  [[nodiscard]] data::in_memory<std::int32_t, std::int32_t> dataset() const {
    return {tensor_view<std::int32_t const>(words.data(), {24, 8}),
            tensor_view<std::int32_t const>(next.data(), {24, 8})};
  }
};

nn::loss::cross_entropy const all_terms{.ignored = 5, .smoothing = 0.1, .z = 1e-2};

/// A head of two words, behind an embedding of many.
struct few_words {
  using policy_category = slot::model;
  void units(auto&& emit) const {
    using namespace nn;
    emit(block{"", 8, 0, chain(named("embed", embedding{.words = 23, .outputs = 8}))});
    emit(block{"", 8, 0, chain(named("head", unembedding{.words = 2}), loss::cross_entropy{})});
  }
};
std::string to_string(few_words const&) { return "few_words{}"; }
toy::training<few_words, decltype(uneven{}.dataset())> training_of_few_words() {
  return {{}, uneven{}.dataset(), {.steps = 1, .batch = 6}};
}

double hyperbola(double x, double target) { return std::cosh(x - target) - 1; }
double slope_of_it(double x, double target) { return std::sinh(x - target); }

}  // namespace

TEST_CASE("gradients are those of the mean over counted rows, with every term", "[nn][losses]") {
  uneven const data;
  auto const batch = make_samples(tensor_view<std::int32_t const>(data.words.data(), {5, 8}),
                                  tensor_view<std::int32_t const>(data.next.data(), {5, 8}));
  for (auto const& loss : {nn::loss::cross_entropy{}, nn::loss::cross_entropy{.ignored = 5}, all_terms}) {
    auto const report = testing::check_gradients(small_model{loss}, batch);
    INFO(to_string(report));
    CHECK(report);
  }
}

TEST_CASE("the mean over counted rows is the same however samples are dealt out", "[nn][losses]") {
  watchdog dog("means");
  for (auto const& loss : {nn::loss::cross_entropy{}, all_terms}) {
    toy::training<small_model, decltype(uneven{}.dataset())> one{
        {loss}, uneven{}.dataset(), {.steps = 4, .batch = 6, .micro_batches = 6}};
    auto const serial = one.alone(toy::steady, precision::fp64{});
    decltype(one) const whole{{loss}, uneven{}.dataset(), {.steps = 4, .batch = 6}};
    toy::check_near(whole.alone(toy::steady, precision::fp64{}), serial, 1e-11);
    auto const compare = [&](int ranks, auto const& policy) {
      INFO(to_string(policy));
      toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-10);
    };
    compare(3, parallel::data{});
    compare(2, parallel::zero<3>{});
    compare(2, parallel::context{.ways = 2});
    compare(2, parallel::mesh{parallel::tensor{.ways = 2}, parallel::sequence{}});
    compare(4, parallel::mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, parallel::tensor{.ways = 2}});
  }
}

TEST_CASE("the first step's norm is that of the mean over counted rows", "[nn][losses]") {
  // All samples but one are left out: the step is that of this one alone.
  uneven some;
  for (std::size_t i = 8; i < some.next.size(); ++i) some.next[i] = -1;
  auto const all = tensor_view<std::int32_t const>(some.words.data(), {24, 8});
  auto const targets = tensor_view<std::int32_t const>(some.next.data(), {24, 8});
  auto const norm = [](std::int64_t samples, auto const& words, auto const& next) {
    comm::self_world self;
    auto trainer = make_trainer(small_model{}, optim::sgd{.learning_rate = 0.1}, self, precision::fp64{});
    trainer.initialise(3);
    double first = 0;
    trainer.on_step([&](step_report const& done) { first = done.norm; });
    trainer.fit(data::in_memory<std::int32_t, std::int32_t>(words, next), {.steps = 1, .batch = samples});
    return first;
  };
  CHECK(norm(24, all, targets) == Approx(norm(1, all.rows(0, 1), targets.rows(0, 1))).epsilon(1e-12));
}

TEST_CASE("a step of which no row is counted changes nothing", "[nn][losses]") {
  uneven none;
  for (auto& each : none.next) each = -1;
  comm::self_world self;
  auto trainer = make_trainer(small_model{}, optim::sgd{.learning_rate = 0.1}, self);
  auto const values = [&] {
    std::vector<float> all;
    trainer.for_each_state([&](std::string const& name, auto const&, std::int64_t, auto part) {
      if (name.starts_with("value/")) all.insert(all.end(), part.span().begin(), part.span().end());
    });
    return all;
  };
  auto const before = values();
  CHECK(trainer.fit(none.dataset(), {.steps = 1, .batch = 6}).last_loss == 0);
  CHECK(values() == before);
}

TEST_CASE("losses are described, compared and checked", "[nn][losses]") {
  using nn::loss::each;
  CHECK(to_string(nn::loss::cross_entropy{}) == "cross_entropy");
  CHECK(to_string(all_terms) == "cross_entropy{.ignored = 5, .smoothing = 0.1, .z = 0.01}");
  each const cosh{&hyperbola, &slope_of_it, "cosh"};
  auto const other = each{&slope_of_it, &slope_of_it, "cosh"};
  CHECK(to_string(cosh) == "each(cosh)");
  CHECK(cosh == cosh);
  CHECK_FALSE(cosh == other);
  each const square{[](double x, double t) { return (x - t) * (x - t); },
                    [](double x, double t) { return 2 * (x - t); }};
  nn::mlp_with<std::remove_const_t<decltype(square)>> const model{.hidden = {3}, .loss = square};
  CHECK(model == model);
  CHECK(to_string(model) ==
        "nn::mlp_with<each>{.inputs = 1, .hidden = {3}, .outputs = 1, .act = ops::activation::tanh}");
  CHECK(sentence_of<config_error>([] {
          comm::self_world self;
          static_cast<void>(make_trainer(small_model{{.smoothing = 2}}, optim::sgd{}, self));
        }) == "trireme::nn::loss::cross_entropy: smoothing 2, z 0; smoothing lies in [0, 1], and z is not negative");
  auto few = training_of_few_words();
  CHECK(sentence_of<config_error>([&] { static_cast<void>(few.on(3, optim::sgd{}, parallel::tensor{.ways = 3})); }) ==
        "trireme::nn::unembedding: the 2 words of head.weight cannot be cut into 3 ways; a tensor group has at most as "
        "many ranks as there are words");
}
