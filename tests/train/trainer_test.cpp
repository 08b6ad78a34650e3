// test-sanitize: thread
#include "trireme/train/trainer.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/sentence.hpp"
#include "../support/spline.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/lend.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/data/function.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/parallel/diloco.hpp"

using namespace trireme;

namespace {

float parabola(float x) { return x * x; }
data::function<float (*)(float)> curve(std::int64_t samples) {
  return data::function(&parabola, {.samples = samples, .low = -1, .high = 1});
}

/// The whole state except the progress of the run.
template <class Trainer>
std::uint64_t hash_of_tensors(Trainer& trainer) {
  std::uint64_t sum = 0;
  trainer.for_each_state([&](std::string const& name, parameter_info const&, std::int64_t first, auto view) {
    sum += ops::on<host>::hash(view, hash_name(name), first);
  });
  return sum;
}

struct forgetful : toy::spline {
  void backward(auto&& ready) { ready("shift"); }
};

}  // namespace

TEST_CASE("policies in any order make one type", "[train]") {
  comm::self_world world;
  auto one = [&] {
    return make_trainer(nn::mlp{}, optim::adamw{}, world, parallel::zero<1>{}, precision::bf16{}, compression::none{});
  };
  auto other = [&] {
    return make_trainer(compression::none{}, precision::bf16{}, world, parallel::zero<1>{}, optim::adamw{}, nn::mlp{});
  };
  static_assert(std::is_same_v<decltype(one()), decltype(other())>);
  auto short_form = [&] { return make_trainer(world, nn::mlp{}, optim::adamw{}); };
  auto long_form = [&] {
    return make_trainer(nn::mlp{}, precision::fp32{}, optim::adamw{}, compression::none{}, world, parallel::data{});
  };
  static_assert(std::is_same_v<decltype(short_form()), decltype(long_form())>);
  CHECK(other().optimizer() == optim::adamw{});
}

TEST_CASE("trainer_for is constructed in place, with policies in any order", "[train]") {
  using trained = trainer_for<nn::mlp, comm::self_world, optim::sgd>;
  static_assert(
      std::is_same_v<trained, trainer_for<optim::sgd, parallel::data, nn::mlp, precision::fp32, comm::self_world>>);
  comm::self_world world;
  nn::mlp const model{.hidden = {4}};
  optim::sgd const sgd{.learning_rate = 1e-2};
  static_assert(std::is_same_v<trained, decltype(make_trainer(model, sgd, world))>);
  auto const made = make_trainer(model, sgd, world).state_hash();
  std::optional<trained> later;
  for (int again = 0; again < 2; ++again) CHECK(later.emplace(world, model, sgd).state_hash() == made);
  auto held = std::make_unique<trained>(sgd, world, model);
  auto const moved = std::move(held);
  CHECK(moved->state_hash() == made);
  struct part {
    trained trainer;
    explicit part(comm::self_world& of, nn::mlp const& how) : trainer(how, of, optim::sgd{.learning_rate = 1e-2}) {}
  };
  CHECK(part(world, model).trainer.state_hash() == made);
  std::map<std::string, trained> several;
  CHECK(several.try_emplace("first", model, sgd, world, parallel::data{}).first->second.state_hash() == made);
  CHECK(several.at("first")
            .fit(data::function(+[](float x) { return x; }, {.samples = 8}), {.steps = 2, .batch = 4})
            .steps == 2);
  toy::spline spline;
  std::optional<trainer_for<toy::spline, optim::adamw, comm::self_world>> plain;
  plain.emplace(spline, optim::adamw{}, world);  // an lvalue: the model stays the caller's
  plain->change_parameters([](auto const&, shape const&, std::span<float> values) { std::ranges::fill(values, 2.0F); });
  spline.visit_parameters([](auto const&, auto values, auto) { CHECK(values[0] == 2); });
}

TEST_CASE("a step with a NaN on one rank changes nothing on any rank, and ten in a row are an error", "[train]") {
  std::atomic<int> good{0};
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    auto trainer = make_trainer(nn::mlp{.hidden = {4}}, optim::adamw{}, world, parallel::zero<1>{});
    std::vector<float> features{0.1F, 0.2F};
    std::vector<float> const targets{1.0F, 2.0F};
    auto const first = trainer.step(features, targets);
    auto const before = hash_of_tensors(trainer);
    if (world.rank() == 1) features[1] = std::numeric_limits<float>::quiet_NaN();
    auto const skipped = trainer.step(features, targets);
    bool const unchanged = hash_of_tensors(trainer) == before;
    if (world.rank() == 1) features[1] = 0.2F;
    auto const third = trainer.step(features, targets);
    if (world.rank() == 1) features[1] = std::numeric_limits<float>::infinity();
    for (int skip = 0; skip < 9; ++skip) trainer.step(features, targets);
    auto const sentence = sentence_of([&] { trainer.step(features, targets); });
    auto const end = trainer.steps();
    bool const says =
        sentence.find("trireme::trainer: no finite gradients in 10 steps, up to step 12") != std::string::npos &&
        (world.rank() != 1 || sentence.find(" (here first in \"layers.0.weight\")") != std::string::npos);
    good += !first.skipped && skipped.skipped && unchanged && !third.skipped && says && end == 12 ? 1 : 0;
    if (!says) WARN(sentence);
  });
  CHECK(good == 3);
}

TEST_CASE("no compressor keeps a NaN, not even in residuals", "[train]") {
  auto const recovers = [](auto compressor) {
    std::atomic<int> good{0};
    launch(comm::threads{.ranks = 2}, [&](auto& world) {
      auto trainer = make_trainer(nn::mlp{.hidden = {8}}, optim::adamw{}, world, compressor);
      std::vector<float> features{0.1F, 0.2F};
      std::vector<float> const targets{1.0F, 2.0F};
      trainer.step(features, targets);
      auto const before = hash_of_tensors(trainer);
      if (world.rank() == 0) features[0] = std::numeric_limits<float>::quiet_NaN();
      bool const skipped = trainer.step(features, targets).skipped;
      bool const unchanged = hash_of_tensors(trainer) == before;
      features[0] = 0.1F;
      good += skipped && unchanged && !trainer.step(features, targets).skipped ? 1 : 0;
    });
    return good == 2;
  };
  CHECK(recovers(compression::none{}));
  CHECK(recovers(compression::top_k{.ratio = 0.2F}));
  CHECK(recovers(compression::error_feedback<compression::top_k>{.inner = {.ratio = 0.2F}}));
  CHECK(recovers(compression::error_feedback<compression::cast<bf16>>{}));
}

TEST_CASE("if one rank requests a stop all ranks end after the same step, and may continue", "[train]") {
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    auto trainer = make_trainer(nn::mlp{.hidden = {4}}, optim::adamw{}, world);
    bool asked = false;
    trainer.on_step([&](step_report const& done) {
      if (world.rank() == 1 && done.step == 3 && !asked) {
        asked = true;
        trainer.request_stop();
      }
    });
    auto const data = curve(40);
    auto const stopped = trainer.fit(data, {.steps = 12, .batch = 8});
    std::int64_t least = trainer.steps();
    std::int64_t most = least;
    world.all_reduce(tensor_view<std::int64_t>(&least, shape{1}), reduction::min{});
    world.all_reduce(tensor_view<std::int64_t>(&most, shape{1}), reduction::max{});
    auto const rest = trainer.fit(data, {.steps = 12, .batch = 8});
    if (world.rank() != 0) return;
    CHECK(stopped.stopped);
    CHECK(least == 5);
    CHECK(most == 5);
    CHECK(!rest.stopped);
    CHECK(rest.first_step == 5);
    CHECK(trainer.steps() == 12);
  });
}

TEST_CASE("after stop_after the rest of the schedule gives the result of one run", "[train]") {
  auto const hash = [](std::int64_t stop_after) {
    comm::self_world world;
    auto trainer = make_trainer(toy::gpt, toy::adaptive, world);
    if (stop_after > 0) trainer.fit(toy::text{}, {.steps = 8, .batch = 10, .stop_after = stop_after});
    CHECK(trainer.steps() == stop_after);
    if (stop_after < 8) trainer.fit(toy::text{}, {.steps = 8, .batch = 10});
    return trainer.state_hash();
  };
  CHECK(hash(3) == hash(0));
  CHECK(hash(8) == hash(0));
}

TEST_CASE("more ranks than micro-batches, and short last batches, equal serial training", "[train]") {
  auto const train = [](auto& world, auto... policies) {
    auto trainer = make_trainer(toy::gpt, toy::steady, world, policies...);
    trainer.fit(toy::text{}, {.steps = 10, .batch = 7, .micro_batches = 2});
    auto const loss = trainer.evaluate(toy::text{}, 4);
    std::vector<double> losses(static_cast<std::size_t>(world.size()));
    losses[static_cast<std::size_t>(world.rank())] = loss;
    world.all_gather(tensor_view<double>(losses));
    bool const equal = std::ranges::all_of(losses, [&](double each) { return each == loss; });
    return equal ? loss : std::numeric_limits<double>::quiet_NaN();
  };
  comm::self_world alone;
  double const serial = train(alone);
  for (int const ranks : {2, 4}) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      double const data = train(world);
      double const zero = train(world, parallel::zero<1>{});
      if (world.rank() != 0) return;
      CHECK(data == Approx(serial).epsilon(1e-5));
      CHECK(zero == data);
    });
  }
}

TEST_CASE("any_world trains to the bits of the world behind it, with the same traffic", "[train]") {
  auto const train = [](auto& world, auto model) {
    auto trainer = make_trainer(model, optim::adamw{.learning_rate = 1e-2}, world);
    trainer.fit(curve(64), {.steps = 5, .batch = 16});
    return std::pair{trainer.state_hash(), trainer.grid().bytes_sent()};
  };
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto const own = train(world, nn::mlp{.hidden = {8}});
    auto lent = comm::lend(world);
    auto const others = train(lent, nn::mlp{.hidden = {8}});
    if (world.rank() == 0) CHECK(own == others);
  });
}

TEST_CASE("a trained perceptron predicts the same on every rank", "[train]") {
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(nn::mlp{.hidden = {16, 16}}, optim::adamw{.learning_rate = 1e-2}, world);
    auto const report = trainer.fit(curve(64), {.steps = 400, .batch = 16});
    std::vector<float> const points{-0.75F, 0.0F, 0.5F};
    auto const values = trainer.predict(points);
    auto copies = std::vector<float>(6);
    std::copy_n(values.span().begin(), 3, copies.begin() + 3 * world.rank());
    world.all_gather(tensor_view<float>(copies));
    if (world.rank() != 0) return;
    CHECK(report.last_loss < 0.05 * report.first_loss);
    CHECK(values.extents() == shape{3, 1});
    CHECK(values[0] == Approx(0.5625).margin(0.05));
    CHECK(values[1] == Approx(0).margin(0.05));
    CHECK(values[2] == Approx(0.25).margin(0.05));
    CHECK(std::equal(copies.begin(), copies.begin() + 3, copies.begin() + 3));
  });
}

TEST_CASE("a step on each rank's own samples weights ranks by their samples, and a rank may have none", "[train]") {
  std::vector<float> const x{-0.9F, -0.3F, 0.2F, 0.4F, 0.8F};
  std::vector<float> y(5);
  std::ranges::transform(x, y.begin(), parabola);
  auto const train = [&](auto& world, std::size_t first, std::size_t last) {
    auto trainer = make_trainer(nn::mlp{.hidden = {4}}, optim::sgd{}, world);
    std::vector<float> const features(x.begin() + static_cast<long>(first), x.begin() + static_cast<long>(last));
    std::vector<float> const targets(y.begin() + static_cast<long>(first), y.begin() + static_cast<long>(last));
    step_report done;
    for (int step = 0; step < 5; ++step) done = trainer.step(features, targets);
    auto const weights = trainer.exchange().parameter_values(trainer.exchange().plan().at(0));
    return std::pair(done, weights[0]);
  };
  comm::self_world alone;
  auto const alone_result = train(alone, 0, 5);
  auto const& serial = alone_result.first;
  float const weight = alone_result.second;
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    std::size_t const cuts[] = {0, 4, 4, 5};
    auto const [done, mine] = train(world, cuts[world.rank()], cuts[world.rank() + 1]);
    if (world.rank() != 1) return;
    CHECK(done.samples == 5);
    CHECK(done.loss == Approx(serial.loss).epsilon(1e-5));
    CHECK(done.norm == Approx(serial.norm).epsilon(1e-5));
    CHECK(mine == Approx(weight).epsilon(1e-5));
  });
}

TEST_CASE("a step without samples on any rank is a report of none, and changes nothing", "[train]") {
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world, parallel::diloco{.period = 2});
    std::vector<float> const x{0.5F}, y{0.25F}, none;
    trainer.step(x, y);
    auto const before = trainer.state_hash();
    auto const calm = trainer.step(none, none);
    auto const after = trainer.state_hash();
    auto const next = world.rank() == 0 ? trainer.step(x, y) : trainer.step(none, none);
    if (world.rank() != 1) return;
    CHECK(before == after);
    CHECK(calm.samples == 0);
    CHECK(calm.step == 1);
    CHECK(std::isnan(calm.loss));
    CHECK_FALSE(calm.skipped);
    CHECK(next.step == 1);
    CHECK(next.samples == 1);
  });
}

TEST_CASE("many samples are predicted in blocks, with the bits of predicting each alone", "[train]") {
  std::int64_t const all = 5000, inputs = 3;
  std::vector<float> features(static_cast<std::size_t>(all * inputs));
  for (std::size_t i = 0; i < features.size(); ++i) features[i] = static_cast<float>(i % 97) / 97;
  auto const part = [&](std::int64_t first, std::int64_t count) {
    return tensor_view<float const>(features.data() + first * inputs, {count, inputs});
  };
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer =
        make_trainer(nn::mlp{.inputs = inputs, .hidden = {16}, .outputs = 2}, optim::sgd{}, world, parallel::zero<3>{});
    auto const outputs = trainer.predict(part(0, all));
    bool equal = outputs.extents() == shape{all, 2};
    for (auto const first : {std::int64_t{0}, std::int64_t{4095}, std::int64_t{4096}, all - 1}) {
      auto const one = trainer.predict(part(first, 1));
      equal = equal && one[0] == outputs[2 * first] && one[1] == outputs[2 * first + 1];
    }
    auto const bytes = trainer.engine().peak_bytes();
    if (world.rank() != 0) return;
    CHECK(equal);
    CHECK(bytes < 4096 * (16 + 16 + 3 + 2) * 2 * sizeof(float));
  });
}

TEST_CASE("a user's model with its own storage and kernels trains under every strategy as on one rank", "[train]") {
  auto const train = [](auto& world, auto... policies) {
    toy::spline model;
    auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.2, .clip = 1.0}, world, policies...);
    trainer.fit(curve(45), {.steps = 40, .batch = 10, .micro_batches = 4});
    std::vector<double> all(model.knots.begin(), model.knots.end());
    all.push_back(trainer.evaluate(curve(45)));
    return all;
  };
  comm::self_world alone;
  auto const serial = train(alone);
  CHECK(serial.back() < 0.01);
  for (int const ranks : {1, 2, 3}) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto const data = train(world);
      auto const zero = train(world, parallel::zero<1>{});
      if (world.rank() + 1 != world.size()) return;
      INFO("ranks " << ranks);
      CHECK(toy::distance(data, serial) < 1e-5);
      CHECK(toy::distance(zero, data) == 0);
    });
  }
}

TEST_CASE("the error for a backward that does not report a parameter names it", "[train]") {
  comm::self_world world;
  auto trainer = make_trainer(forgetful{}, optim::sgd{}, world);
  CHECK(sentence_of([&] { trainer.fit(curve(8), {.steps = 1}); }) ==
        "trireme::trainer: the model's backward did not call ready(\"values at the knots of the spline\")");
}

TEST_CASE("ranks that start from different parameters of their own are refused", "[train]") {
  std::atomic<int> told{0};
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    toy::spline model;
    model.shift[0] = static_cast<float>(world.rank());
    auto const sentence = sentence_of([&] { static_cast<void>(make_trainer(model, optim::sgd{}, world)); });
    told += sentence ==
                    "trireme::exchange: the parameters of rank 1 differ from those of rank 0; start every rank from "
                    "the same values: world.broadcast(values, 0) gives it those of rank 0"
                ? 1
                : 0;
  });
  CHECK(told == 2);
}
