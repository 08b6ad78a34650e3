// What the mean of a loss is over, whatever the mesh; and losses of one's own as descriptions.
#include "trireme/nn/losses.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/plan_differences.hpp"
#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/experts.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/nn/multi_token.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/schedules/schedules.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/testing/gradient_check.hpp"
#include "trireme/train/metrics.hpp"

using namespace trireme;

namespace {

/// Two words beside each other make the next one.
struct small_model {
  using policy_category = slot::model;
  static constexpr bool cuts_context = true;
  nn::loss::cross_entropy loss{};

  void units(auto&& emit) const {
    using namespace nn;
    emit(block{"", 8, chain(named("embed", embedding{.words = 23, .outputs = 8}))});
    emit(block{"layer", 8,
               chain(residual(named("in", linear{.outputs = 12}), gelu(), named("out", linear{.outputs = 8})))});
    emit(block{"", 8, chain(named("head", unembedding{.words = 23}), loss)});
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

/// Its rows are also told the word after the next one, in training.
struct two_losses {
  using policy_category = slot::model;
  nn::loss::cross_entropy_ahead second{.by = 1};
  std::int64_t width = 8;

  void units(auto&& emit) const {
    using namespace nn;
    emit(block{"", 8, chain(named("embed", embedding{.words = 23, .outputs = 8}))});
    emit(block{"mid", 8, chain(in_training(named("in", linear{.outputs = width}), gelu()))});
    emit(block{"", 8, auxiliary_loss(named("second", unembedding{.words = 23}), second)});
    emit(block{"", 8, chain(named("head", unembedding{.words = 23}), loss::cross_entropy{})});
  }
};
std::string to_string(two_losses const& m) { return text("two_losses{", to_string(m.second), "}"); }

nn::loss::cross_entropy const all_terms{.ignored = 5, .smoothing = 0.1, .z = 1e-2};

/// A head of two words, behind an embedding of many.
struct few_words {
  using policy_category = slot::model;
  void units(auto&& emit) const {
    using namespace nn;
    emit(block{"", 8, chain(named("embed", embedding{.words = 23, .outputs = 8}))});
    emit(block{"", 8, chain(named("head", unembedding{.words = 2}), loss::cross_entropy{})});
  }
};
std::string to_string(few_words const&) { return "few_words{}"; }
toy::training<few_words, decltype(uneven{}.dataset())> training_of_few_words() {
  return {{}, uneven{}.dataset(), {.steps = 1, .batch = 6}};
}

/// Three answers, yes or no or in between, to each of 12 points.
struct answers {
  std::vector<float> x = std::vector<float>(12 * 4), yes = std::vector<float>(12 * 3);
  answers() {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * i % 17) / 8.0F - 1;
    for (std::size_t i = 0; i < yes.size(); ++i) yes[i] = i % 5 == 4 ? 0.25F : static_cast<float>(i * i % 3 == 1);
  }
  [[nodiscard]] data::in_memory<float, float> dataset() const {
    return {tensor_view<float const>(x.data(), {12, 4}), tensor_view<float const>(yes.data(), {12, 3})};
  }
};
nn::mlp_with<nn::loss::binary_cross_entropy> const answering{.inputs = 4, .hidden = {8, 6}, .outputs = 3};

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

TEST_CASE("the mean over counted rows does not depend on how samples are distributed", "[nn][losses]") {
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

TEST_CASE("a second loss adds its weight times its gradient, in training only", "[nn][losses]") {
  using values = std::map<std::string, std::vector<double>>;
  // What a step of plain descent changes, which is the gradient; and the loss before it.
  auto const step = [](double weight, int ranks) {
    std::pair<values, double> out;
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(two_losses{{.by = 1, .weight = weight}}, optim::sgd{.learning_rate = 1}, world,
                                  precision::fp64{}, parallel::data{});
      trainer.initialise(3);
      values change;
      auto const add = [&](double sign) {
        trainer.for_each_state([&](std::string const& name, auto const&, std::int64_t, auto part) {
          auto& all = change[name];
          all.resize(part.span().size());
          for (std::size_t i = 0; i < all.size(); ++i) all[i] += sign * static_cast<double>(part.span()[i]);
        });
      };
      auto const before = trainer.evaluate(uneven{}.dataset());
      add(-1);
      trainer.fit(uneven{}.dataset(), {.steps = 1, .batch = 24});
      add(1);
      if (world.rank() == 0) out = {change, before};
    });
    return out;
  };
  auto const [none, loss] = step(0, 1);
  auto const [one, loss_of_one] = step(1, 1);
  auto const [two, loss_of_two] = step(2, 2);
  CHECK(loss_of_one == loss);
  CHECK(loss_of_two == Approx(loss).epsilon(1e-12));
  for (auto const& [name, change] : none) {
    INFO(name);
    double most = 0, wrong = 0;
    for (std::size_t i = 0; i < change.size(); ++i) {
      double const second = one.at(name)[i] - change[i];
      most = std::max(most, std::abs(second));
      wrong = std::max(wrong, std::abs(two.at(name)[i] - change[i] - 2 * second));
    }
    if (name.starts_with("value/")) CHECK((most > 1e-9) == (name != "value/head.weight"));
    CHECK(wrong < 1e-12);
    if (name == "value/second.weight") CHECK(change == std::vector<double>(change.size()));
  }
}

TEST_CASE("a step without counted rows changes nothing", "[nn][losses]") {
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

TEST_CASE("binary_cross_entropy has PyTorch's values, for large logits too", "[nn][losses]") {
  // torch.nn.functional.binary_cross_entropy_with_logits(x, t, reduction="none"), and the gradient of its sum
  struct one {
    double x, t, loss, slope;
  };
  for (auto const& [x, t, loss, slope] :
       {one{0.5, 1, 0.4740769841801067, -0.3775406687981454}, one{-2, 0.25, 0.6269280110429727, -0.13079707797788245},
        one{30, 1, 9.357622968839737e-14, -9.348077867343819e-14}, one{0, 0.5, 0.6931471805599453, 0},
        one{7.25, 0, 7.250709922334339, 0.9992903296008995}, one{-1000, 1, 1000, -1}, one{1000, 1, 0, 0}}) {
    INFO("x = " << x << ", t = " << t);
    CHECK(nn::loss::binary_cross_entropy::value(x, t) == Approx(loss).epsilon(1e-14));
    CHECK(nn::loss::binary_cross_entropy::slope(x, t) == Approx(slope).epsilon(1e-14).margin(1e-15));
  }
}

TEST_CASE("binary_cross_entropy is the mean over all answers, under every strategy", "[nn][losses]") {
  watchdog dog("answers");
  answers const all;
  auto const batch =
      make_samples(tensor_view<float const>(all.x.data(), {5, 4}), tensor_view<float const>(all.yes.data(), {5, 3}));
  auto const report = testing::check_gradients(answering, batch);
  INFO(to_string(report));
  CHECK(report);

  toy::training<std::remove_const_t<decltype(answering)>, data::in_memory<float, float>> const one{
      answering, all.dataset(), {.steps = 4, .batch = 6, .micro_batches = 3}};
  auto const serial = one.alone(toy::steady, precision::fp64{});
  CHECK(serial.losses.back() < serial.losses.front());
  auto const compare = [&](int ranks, auto const& policy) {
    INFO(to_string(policy));
    toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-10);
  };
  compare(3, parallel::data{});
  compare(2, parallel::zero<3>{});
  compare(2, parallel::tensor{.ways = 2});
  compare(3, parallel::pipeline<schedule::zb_h1>{.stages = 3});

  std::vector<std::string> different(2);
  launch(comm::decorate(comm::threads{.ranks = 2}, comm::counted{}), [&](auto& world) {
    auto trainer = make_trainer(answering, toy::steady, world);
    comm::traffic_table before, after;
    trainer.on_step([&](step_report const& done) { (done.step < 2 ? before : after) = world.counts(); });
    trainer.fit(all.dataset(), {.steps = 3, .batch = 6});
    different[static_cast<std::size_t>(world.rank())] =
        plan_differences(trainer, plan(trainer, all.dataset(), {.samples = 6}), before, after);
  });
  CHECK(different == std::vector<std::string>(2));
}

TEST_CASE("targets of binary_cross_entropy are probabilities, and its answers are counted", "[nn][losses]") {
  comm::self_world self;
  auto trainer = make_trainer(nn::mlp_with<nn::loss::binary_cross_entropy>{.hidden = {4}}, toy::steady, self);
  std::vector<float> const x{-1, 1, 2};
  for (float const bad : {-0.5F, 1.5F, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> const wanted{0, bad, 1};
    CHECK(sentence_of<config_error>([&] { static_cast<void>(trainer.step(x, wanted)); }) ==
          text("trireme::nn::loss::binary_cross_entropy: target ", static_cast<double>(bad),
               " is not a probability; targets lie in [0, 1]"));
  }
  auto const values = trainer.predict(x);
  std::vector<float> const right{values[0] > 0 ? 1.0F : 0.0F, values[1] > 0 ? 1.0F : 0.0F, values[2] > 0 ? 0.0F : 1.0F};
  auto const [seen] = trainer.evaluate(data::in_memory(x, right), 2, metric::confusion(2));
  CHECK(seen.accuracy() == Approx(2.0 / 3));
}

TEST_CASE("losses are described, compared and checked", "[nn][losses]") {
  using nn::loss::each;
  CHECK(to_string(nn::loss::cross_entropy{}) == "cross_entropy");
  CHECK(to_string(answering) ==
        "nn::mlp_with<binary_cross_entropy>{.inputs = 4, .hidden = {8, 6}, .outputs = 3, .act = "
        "ops::activation::tanh}");
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
  auto const wrong = [](two_losses const& model) {
    return sentence_of<config_error>([&] {
      comm::self_world self;
      static_cast<void>(make_trainer(model, optim::sgd{}, self));
    });
  };
  CHECK(wrong({.second = {.by = -1}}) ==
        "trireme::nn::loss::cross_entropy_ahead: -1 rows ahead, weight 1; neither is negative");
  CHECK(wrong({.width = 6}) ==
        "trireme::nn::in_training: the layers of mid make rows of 6 numbers from rows of 8; without them the latter go "
        "on, so both must be as wide");
  auto few = training_of_few_words();
  CHECK(sentence_of<config_error>([&] { static_cast<void>(few.on(3, optim::sgd{}, parallel::tensor{.ways = 3})); }) ==
        "trireme::nn::unembedding: the 2 words of head.weight cannot be cut into 3 ways; a tensor group has at most as "
        "many ranks as there are words");
}

namespace {

/// A loss of words beside that of the last unit, and experts whose balance is a loss, too.
struct losses_of_words {
  using policy_category = slot::model;
  double balance = 0;
  bool concat = true;
  nn::loss::cross_entropy loss{.ignored = 5};

  void units(auto&& emit) const {
    using namespace nn;
    emit(block{"", 8, chain(named("embed", embedding{.words = 23, .outputs = 8}))});
    experts const mixed{.hidden = 6, .count = 4, .chosen = 2, .balance = balance, .projection_scale = 0.5};
    emit(block{"mixed", 8, chain(residual(checkpointed(residual(named("mlp", mixed)))))});
    if (concat) emit(block{"beside", 8, auxiliary_loss(named("second", unembedding{.words = 23}), loss)});
    emit(block{"", 8, chain(named("head", unembedding{.words = 23}), loss)});
  }
};
std::string to_string(losses_of_words const& m) {
  return text("losses_of_words{", m.balance, ", ", m.concat, ", ", to_string(m.loss), "}");
}

/// The same for numbers: three beside, from as many rows of one number as the last unit has numbers in a row.
struct losses_of_numbers {
  using policy_category = slot::model;
  bool concat = true;

  void units(auto&& emit) const {
    using namespace nn;
    emit(block{"", 4, chain(features{4}, named("in", linear{.outputs = 6}), nn::tanh())});
    if (concat) {
      emit(block{"beside", 6,
                 auxiliary_loss(named("second", linear{.outputs = 3}),
                                loss::each{[](double x, double t) { return std::cosh(x - t) - 1; },
                                           [](double x, double t) { return std::sinh(x - t); }, "cosh"})});
    }
    emit(block{"", 6, chain(named("head", linear{.outputs = 3}), loss::squared_error{})});
  }
};
std::string to_string(losses_of_numbers const& m) { return text("losses_of_numbers{", m.concat, "}"); }

/// The first step's loss of a model from one start.
template <class Model, class Data>
double first_loss(Model const& model, Data const& data, std::int64_t batch) {
  comm::self_world self;
  auto trainer = make_trainer(model, optim::sgd{}, self, precision::fp64{});
  return trainer.fit(data, {.steps = 1, .batch = batch}).first_loss;
}

}  // namespace

TEST_CASE("the balance loss of experts and auxiliary losses do not depend on ignored targets", "[nn][losses]") {
  uneven data;
  auto const batch = make_samples(tensor_view<std::int32_t const>(data.words.data(), {5, 8}),
                                  tensor_view<std::int32_t const>(data.next.data(), {5, 8}));
  for (auto const& model : {losses_of_words{.balance = 0.7}, losses_of_words{.balance = 0.7, .concat = false},
                            losses_of_words{.balance = 0, .loss = all_terms}}) {
    auto const report = testing::check_gradients(model, batch);
    INFO(to_string(model) << ": " << to_string(report));
    CHECK(report);
  }
  auto const added = [&](uneven const& of) {
    return first_loss(losses_of_words{.balance = 1}, of.dataset(), 24) -
           first_loss(losses_of_words{.balance = 0}, of.dataset(), 24);
  };
  uneven all = data, few = data, none = data;
  for (std::size_t i = 0; i < all.next.size(); ++i) {
    all.next[i] = static_cast<std::int32_t>(i % 4);
    few.next[i] = i % 8 < 2 ? 1 : -1;
    none.next[i] = -1;
  }
  auto const balance = added(all);
  CHECK(balance > 0.9);
  CHECK(added(data) == Approx(balance).epsilon(1e-12));
  CHECK(added(few) == Approx(balance).epsilon(1e-12));
  CHECK(added(none) == Approx(balance).epsilon(1e-12));  // it is all that is left
  auto const report = testing::check_gradients(losses_of_words{.balance = 0.7},
                                               make_samples(tensor_view<std::int32_t const>(none.words.data(), {5, 8}),
                                                            tensor_view<std::int32_t const>(none.next.data(), {5, 8})));
  INFO(to_string(report));
  CHECK(report);
}

TEST_CASE("an auxiliary loss is added to the mean, and its rows are not counted again", "[nn][losses]") {
  // The same table twice: then the second loss is as large as the first.
  uneven const data;
  double const one = first_loss(losses_of_words{.concat = false}, data.dataset(), 24);
  double const both = first_loss(losses_of_words{}, data.dataset(), 24);
  CHECK(both > 1.9 * one);
  CHECK(both < 2.1 * one);
  answers const points;
  auto const report =
      testing::check_gradients(losses_of_numbers{}, make_samples(tensor_view<float const>(points.x.data(), {12, 4}),
                                                                 tensor_view<float const>(points.yes.data(), {12, 3})));
  INFO(to_string(report));
  CHECK(report);
  CHECK(first_loss(losses_of_numbers{}, points.dataset(), 12) >
        first_loss(losses_of_numbers{.concat = false}, points.dataset(), 12) + 0.1);
}

TEST_CASE("losses without targets train equally on every mesh", "[nn][losses]") {
  watchdog dog("balance on meshes");
  toy::training<losses_of_words, decltype(uneven{}.dataset())> const one{
      {.balance = 0.5}, uneven{}.dataset(), {.steps = 4, .batch = 6, .micro_batches = 6}};
  auto const serial = one.alone(toy::steady, precision::fp64{});
  auto const compare = [&](int ranks, auto const& policy) {
    dog.now(describe(policy));
    INFO(describe(policy));
    toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-10);
  };
  decltype(one) whole{{.balance = 0.5}, uneven{}.dataset(), {.steps = 4, .batch = 6}};
  toy::check_near(whole.alone(toy::steady, precision::fp64{}), serial, 1e-11);
  compare(3, parallel::data{});
  compare(2, parallel::zero<3>{});
  compare(2, parallel::tensor{.ways = 2});
  compare(2, parallel::expert{});
  compare(4, parallel::mesh{parallel::pipeline<schedule::one_f_one_b>{.stages = 2}, parallel::expert{.ways = 2}});
  compare(2, parallel::pipeline<schedule::dual_pipe>{.stages = 2});
  // Ranks that step alone and meet after each step have other norms, but the same losses.
  optim::sgd const descent{.learning_rate = 0.1, .momentum = 0};
  auto const losses = one.alone(descent, precision::fp64{}).losses;
  auto const apart = one.on(2, descent, precision::fp64{},
                            parallel::diloco{.period = 1, .outer_learning_rate = 1, .outer_momentum = 0});
  for (std::size_t i = 0; i < losses.size(); ++i) CHECK(apart.front().losses[i] == Approx(losses[i]).epsilon(1e-9));
}
