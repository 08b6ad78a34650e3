// test-sanitize: none
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/testing/gradient_check.hpp"
#include "trireme/trireme.hpp"

// What a model with storage and kernels of its own may have: purposes, outputs, buffers, element types, frozen and
// unused parameters.

using namespace trireme;

namespace {

auto const line = data::function([](float x) { return 3 * x + 1; }, {.samples = 64});

/// y = slope * (x - mean) + shift, where mean is the batch's in training, and a running mean otherwise.
template <shared_buffers Rule>
struct centred {
  static constexpr shared_buffers buffers = Rule;
  std::vector<float> values{0.5F, 0};  // slope, shift
  std::vector<float> gradient{0, 0};
  std::vector<float> running{0};
  std::vector<std::int64_t> batches{0};
  std::vector<double> slopes{}, inputs{};
  int evaluated = 0;

  void visit_parameters(auto&& visit) { visit("line", tensor_view{values}, tensor_view{gradient}); }
  void visit_buffers(auto&& visit) {
    visit("running_mean", tensor_view{running});
    visit("batches", tensor_view{batches});
  }
  double forward(samples const& batch, purpose why) {
    auto const x = batch.inputs.as<float>();
    auto const y = batch.targets.as<float>();
    double mean = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) mean += static_cast<double>(x[i]) / static_cast<double>(x.size());
    if (why == purpose::train) {
      running[0] = 0.9F * running[0] + 0.1F * static_cast<float>(mean);
      ++batches[0];
    } else {
      ++evaluated;
      mean = static_cast<double>(running[0]);
    }
    slopes.clear();
    inputs.clear();
    double loss = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      inputs.push_back(static_cast<double>(x[i]) - mean);
      auto const error = static_cast<double>(values[0]) * inputs.back() + static_cast<double>(values[1] - y[i]);
      slopes.push_back(2 * error / static_cast<double>(x.size()));
      loss += error * error / static_cast<double>(x.size());
    }
    return loss;
  }
  void backward(auto&& ready) {
    gradient = {0, 0};
    for (std::size_t i = 0; i < slopes.size(); ++i) {
      gradient[0] += static_cast<float>(slopes[i] * inputs[i]);
      gradient[1] += static_cast<float>(slopes[i]);
    }
    ready("line");
  }
  tensor<float> predict(samples const& batch) {
    auto const x = batch.inputs.as<float>();
    tensor<float> out({x.size(), 1});
    for (std::int64_t i = 0; i < x.size(); ++i)
      out.span()[static_cast<std::size_t>(i)] = values[0] * (x[i] - running[0]) + values[1];
    return out;
  }
};

}  // namespace

TEMPLATE_TEST_CASE_SIG("buffers are shared as the model says, and are state", "[train][plain_model]",
                       ((shared_buffers Rule), Rule), shared_buffers::first_rank, shared_buffers::mean) {
  watchdog const guard("buffers");
  scratch folder;
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    centred<Rule> model;
    auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.05}, world);
    std::vector<float> means(3);
    trainer.on_step([&](step_report const&) { means[static_cast<std::size_t>(world.rank())] = model.running[0]; });
    trainer.fit(line, {.steps = 20, .batch = 12, .check_every = 0});
    // What each rank had after the last step, and what all have now.
    world.all_gather(tensor_view<float>(means));
    auto const expected = Rule == shared_buffers::mean ? (means[0] + means[1] + means[2]) / 3 : means[0];
    if (means[0] == means[1]) throw error("the ranks have seen the same samples");
    if (std::abs(model.running[0] - expected) > 1e-6F) throw error("the buffers are not shared");
    if (model.batches[0] != 20) throw error("steps are not counted");

    trainer.save(folder.path());
    auto const hash = trainer.state_hash();
    centred<Rule> other;
    auto again = make_trainer(other, optim::sgd{.learning_rate = 0.05}, world);
    again.load(folder.path());
    if (other.running != model.running || other.batches != model.batches) throw error("buffers were not loaded");
    if (again.state_hash() != hash) throw error("another state");
    other.running[0] += 1;
    if (again.state_hash() == hash) throw error("buffers are not in the hash");
  });
}

TEST_CASE("a plain model gets the purpose of each pass, and predicts", "[train][plain_model]") {
  watchdog const guard("purposes");
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    centred<shared_buffers::mean> model;
    auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.1}, world);
    trainer.fit(line, {.steps = 60, .batch = 16});
    if (model.evaluated != 0) throw error("training was called evaluation");
    auto const loss = trainer.evaluate(line);
    if (model.evaluated == 0 || !(loss < 1)) throw error("evaluation is not told apart");
    std::vector<float> x{-1, 0, 1};
    auto const out = trainer.predict(tensor_view<float const>(x.data(), {3, 1}));
    for (std::size_t i = 0; i < 3; ++i) {
      if (std::abs(out.span()[i] - (3 * x[i] + 1)) > 0.8F) throw error("a prediction is far off");
    }
  });
}

namespace {

/// y = (w + v) x + (a + b) + t, with a parameter of each element type that its trainer supports, a frozen one without a
/// gradient, and one that only some micro-batches use. The order in which gradients are reported depends on rank and
/// step.
template <class Wide>
struct of_many_types {
  static constexpr bool leaves_parameters_out = true;
  int rank = 0;
  std::vector<Wide> w{0.5}, dw{0};
  std::vector<float> v{0.25F}, dv{0};
  std::vector<bf16> a{bf16(0.125F)}, da{bf16(0.0F)};
  std::vector<Wide> b{2}, no_gradient{};
  std::vector<float> t{0.5F}, dt{0};  // used if the first input is above 0
  double slope = 0, constant = 0, turn = 0;
  std::int64_t passes = 0;
  int used = 0, left_out = 0;

  void visit_parameters(auto&& visit) {
    visit("w", tensor_view{w}, tensor_view{dw});
    visit("v", tensor_view{v}, tensor_view{dv});
    visit("a", tensor_view{a}, tensor_view{da});
    visit("b", tensor_view{b}, tensor_view{no_gradient});
    visit("t", tensor_view{t}, tensor_view{dt});
  }
  [[nodiscard]] bool frozen(std::string_view name) const { return name == "b"; }
  double forward(samples const& batch) {
    auto const x = batch.inputs.as<float>();
    auto const y = batch.targets.as<float>();
    auto const n = static_cast<double>(x.size());
    turn = x[0] > 0 ? 1 : 0;
    double const factor = static_cast<double>(w[0]) + static_cast<double>(v[0]);
    double const shift =
        static_cast<double>(static_cast<float>(a[0])) + static_cast<double>(b[0]) + turn * static_cast<double>(t[0]);
    slope = constant = 0;
    double loss = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      double const error = factor * static_cast<double>(x[i]) + shift - static_cast<double>(y[i]);
      loss += error * error / n;
      slope += 2 * error * static_cast<double>(x[i]) / n;
      constant += 2 * error / n;
    }
    return loss;
  }
  void backward(auto&& ready) {
    dw[0] = static_cast<Wide>(slope);
    dv[0] = static_cast<float>(slope);
    da[0] = bf16(static_cast<float>(constant));
    dt[0] = 100;  // of an earlier pass: must never be used unless it is reported
    std::vector<std::string> names{"w", "v", "a"};
    if (turn > 0) {
      dt[0] = static_cast<float>(constant);
      names.emplace_back("t");
      ++used;
    } else {
      ++left_out;
    }
    auto const first = static_cast<std::size_t>(passes++ + rank) % names.size();
    for (std::size_t i = 0; i < names.size(); ++i) ready(names[(first + i) % names.size()]);
  }
};

struct silent : centred<shared_buffers::mean> {
  void backward(auto&&) {}
};

struct line_found {
  double w = 0, v = 0, a = 0, b = 0, t = 0, loss = 0;
  std::uint64_t hash = 0;
};

/// @param load  resumes from this checkpoint, unless it is empty.
template <class Wide, class Precision, class... Policies>
line_found of_types(int ranks, std::string const& load, std::string const& save, std::int64_t until,
                    Policies const&... policies) {
  line_found out;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    of_many_types<Wide> model;
    model.rank = world.rank();
    auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.05}, world, Precision{}, policies...);
    auto const* const where = model.w.data();
    if (!load.empty()) trainer.load(load);
    trainer.fit(line, {.steps = 40, .batch = 16, .micro_batches = 4, .stop_after = until});
    if (!save.empty()) trainer.save(save);
    if (model.w.data() != where) throw error("the model's memory has moved");
    if (model.used == 0 || model.left_out == 0) throw error("every micro-batch, or none, has used \"t\"");
    auto const hash = trainer.state_hash();
    auto const loss = trainer.evaluate(line);
    if (world.rank() > 0) return;
    out = {static_cast<double>(model.w[0]),
           static_cast<double>(model.v[0]),
           static_cast<double>(static_cast<float>(model.a[0])),
           static_cast<double>(model.b[0]),
           static_cast<double>(model.t[0]),
           loss,
           hash};
  });
  return out;
}

template <class Wide, class Precision, class... Policies>
void trains_many_types(Policies const&... policies) {
  watchdog const guard("a model of several element types");
  auto const serial = of_types<Wide, Precision>(1, "", "", 40, policies...);
  CHECK(serial.loss < 1);                                      // from about 3; "t" is not always used
  CHECK(serial.b == 2);                                        // frozen
  CHECK(std::abs(serial.a + serial.b + serial.t / 2) < 2);     // of 1, and some were moved
  CHECK(std::abs(serial.w - 0.5 - (serial.v - 0.25)) < 1e-5);  // the same gradient, each in its own memory
  for (int const ranks : {2, 3}) {
    INFO(ranks << " ranks");
    scratch folder;
    auto const whole = of_types<Wide, Precision>(ranks, "", "", 40, policies...);
    CHECK(whole.w == Approx(serial.w).epsilon(1e-4));
    CHECK(whole.t == Approx(serial.t).epsilon(1e-4));
    CHECK(whole.b == 2);
    static_cast<void>(of_types<Wide, Precision>(ranks, "", folder.path(), 17, policies...));
    CHECK(of_types<Wide, Precision>(ranks, folder.path(), "", 40, policies...).hash == whole.hash);
  }
}

}  // namespace

TEST_CASE("a plain model has parameters of several element types, frozen and unused ones", "[train][plain_model]") {
  trains_many_types<float, precision::fp32>();
  trains_many_types<double, precision::fp64>();
  trains_many_types<float, precision::fp32>(parallel::zero<1>{});
}

TEST_CASE("narrow parameters have master values in the trainer's type, which keep small updates",
          "[train][plain_model]") {
  watchdog const guard("master values");
  comm::self_world world;
  of_many_types<float> model;
  auto trainer = make_trainer(model, optim::sgd{.learning_rate = 1e-5, .momentum = 0}, world);
  float first = 0, master = 0;
  auto const read = [&](float& to) {
    trainer.for_each_state([&](std::string const& name, auto const&, std::int64_t, auto view) {
      if (name == "value/a") to = static_cast<float>(view[0]);
    });
  };
  read(first);
  trainer.fit(line, {.steps = 20, .batch = 16});
  read(master);
  CHECK(first == 0.125F);
  CHECK(master != first);
  CHECK(std::abs(master - first) < 1e-3F);
  CHECK(static_cast<float>(model.a[0]) == static_cast<float>(bf16(master)));
}

TEST_CASE("a parameter that backward does not report is an error unless the model says so", "[train][plain_model]") {
  comm::self_world world;
  silent quiet;
  auto trainer = make_trainer(quiet, optim::sgd{}, world);
  CHECK(contains(sentence_of([&] { trainer.fit(line, {.steps = 1, .batch = 16}); }),
                 "the model's backward did not call ready(\"line\")"));
}

// Losses that count their own targets, and losses that are not finite.

namespace {

/// y = slope x + shift if the target is not -1; the loss is the sum of squares over these samples, together with their
/// number, or with the sum of their weights (1, or that of the input).
template <class Number>
struct counting_line {
  bool weighs = false;
  double at_most = 1e300;  // a loss beyond it is infinite
  std::vector<Number> values{1, 0.25};
  std::vector<Number> gradient{0, 0};
  std::vector<double> slopes{}, inputs{};

  void visit_parameters(auto&& visit) { visit("line", tensor_view{values}, tensor_view{gradient}); }
  counted_loss forward(samples const& batch) {
    auto const x = batch.inputs.as<float>(), y = batch.targets.as<float>();
    counted_loss loss;
    slopes.clear(), inputs.clear();
    for (std::int64_t i = 0; i < batch.count(); ++i) {
      if (y[i] < 0) continue;
      double const weight = weighs ? 0.1 + std::abs(static_cast<double>(x[i])) : 1.0;
      auto const error = static_cast<double>(values[0]) * static_cast<double>(x[i]) + static_cast<double>(values[1]) -
                         static_cast<double>(y[i]);
      inputs.push_back(static_cast<double>(x[i]));
      slopes.push_back(2 * weight * error);
      loss.sum += weight * error * error;
      loss.count += weight;
    }
    if (loss.count == 0) loss.sum = std::nan("");  // the mean of no samples
    return loss;
  }
  void backward(auto&& ready, double scale = 1) {
    double both[2] = {0, 0};
    for (std::size_t i = 0; i < slopes.size(); ++i) {
      both[0] += scale * slopes[i] * inputs[i];
      both[1] += scale * slopes[i];
    }
    gradient = {static_cast<Number>(both[0]), static_cast<Number>(both[1])};
    ready("line");
  }
};
/// The same, with support for mixed precision.
struct casting_line : counting_line<float> {
  void compute_in(dtype) {}
};
/// The same, with a backward that cannot scale its loss.
template <class Number>
struct unscaled_line : counting_line<Number> {
  void backward(auto&& ready) { counting_line<Number>::backward(ready); }
};

/// 16 samples, of which 9 count: the first eight except one, and two of the others.
data::in_memory<float, float> some_counted() {
  std::vector<float> x, y;
  for (int i = 0; i < 16; ++i) {
    x.push_back(static_cast<float>(i * i % 7) / 4.0F);
    y.push_back(i == 3 || (i > 7 && i != 9 && i != 14) ? -1.0F : static_cast<float>(i % 5));
  }
  return {x, y, {.inputs = 1, .targets = 1}};
}

struct counted_outcome {
  std::vector<double> values{};
  double first = 0, last = 0, evaluated = 0, norm = 0;
};

template <class Model, class... Policies>
counted_outcome counted_training(Model const& start, int ranks, std::int64_t micro_batches,
                                 Policies const&... policies) {
  std::vector<counted_outcome> all(static_cast<std::size_t>(ranks));
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto model = start;
    auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.125, .momentum = 0}, world, policies...);
    auto const report = trainer.fit(some_counted(), {.steps = 6, .batch = 16, .micro_batches = micro_batches});
    auto& mine = all[static_cast<std::size_t>(world.rank())];
    mine = {{model.values.begin(), model.values.end()},
            report.first_loss,
            report.last_loss,
            trainer.evaluate(some_counted(), 3),
            report.last_norm};
  });
  for (auto const& each : all) CHECK(each.values == all[0].values);
  return all[0];
}
void check_equal(counted_outcome const& a, counted_outcome const& b, double most) {
  for (std::size_t i = 0; i < 2; ++i) CHECK(a.values[i] == Approx(b.values[i]).epsilon(most));
  CHECK(a.first == Approx(b.first).epsilon(most));
  CHECK(a.last == Approx(b.last).epsilon(most));
  CHECK(a.evaluated == Approx(b.evaluated).epsilon(most));
}

}  // namespace

TEST_CASE("a loss that counts its targets trains equally however samples are distributed", "[train][plain_model]") {
  watchdog dog("counted losses");
  // By hand: the result of plain gradient descent on the mean over the samples that count.
  double values[2] = {1, 0.25};
  auto const data = some_counted();
  double first = 0;
  for (int step = 0; step < 6; ++step) {
    counting_line<double> line;
    line.values = {values[0], values[1]};
    std::vector<std::int64_t> ids(16);
    for (std::size_t i = 0; i < 16; ++i) ids[i] = static_cast<std::int64_t>(i);
    std::vector<float> x(16), y(16);
    data.read(ids, x.data(), y.data());
    auto const loss = line.forward(make_samples(tensor_view(x), tensor_view(y)));
    CHECK(loss.count == 9);
    if (step == 0) first = loss.sum / 9;
    line.backward([](auto) {});
    for (std::size_t i = 0; i < 2; ++i) values[i] -= 0.125 * line.gradient[i] / 9;
  }
  for (bool const weighs : {false, true}) {
    counting_line<double> model;
    model.weighs = weighs;
    auto const serial = counted_training(model, 1, 1, precision::fp64{});
    if (!weighs) {
      CHECK(serial.values[0] == Approx(values[0]).epsilon(1e-12));
      CHECK(serial.values[1] == Approx(values[1]).epsilon(1e-12));
      CHECK(serial.first == Approx(first).epsilon(1e-14));
    }
    double const most = weighs ? 1e-8 : 1e-11;  // weights are rounded to 2^-30
    unscaled_line<double> unscaled;
    unscaled.weighs = weighs;
    for (int const ranks : {1, 2, 3}) {
      for (std::int64_t const micro : {1, 4, 16}) {
        dog.now(text(ranks, " ranks, ", micro, " micro-batches"));
        INFO(ranks << " ranks, " << micro << " micro-batches, weights " << weighs);
        check_equal(counted_training(model, ranks, micro, precision::fp64{}), serial, most);
        check_equal(counted_training(unscaled, ranks, micro, precision::fp64{}), serial, most);
      }
    }
    auto const with = [&](auto const& strategy) {
      check_equal(counted_training(model, 2, 4, precision::fp64{}, strategy), serial, most);
    };
    with(parallel::zero<1>{});
    with(parallel::zero<2>{});
    with(parallel::parameter_server{});
    with(parallel::diloco{.period = 1, .outer_learning_rate = 1, .outer_momentum = 0});
  }
}

TEST_CASE("a counted loss is trained in float and with a loss scale", "[train][plain_model][precision]") {
  watchdog const guard("counted losses with a scale");
  auto const serial = counted_training(counting_line<double>{}, 1, 1, precision::fp64{});
  check_equal(counted_training(counting_line<float>{}, 2, 8), serial, 1e-5);
  check_equal(counted_training(casting_line{}, 2, 8, precision::fp16{.first_scale = 256}), serial, 1e-5);
  check_equal(counted_training(casting_line{}, 1, 4, precision::bf16{}, parallel::zero<1>{}), serial, 1e-5);
}

TEST_CASE("micro-batches without counted targets add nothing, and a step of them changes nothing",
          "[train][plain_model]") {
  watchdog const guard("nothing counted");
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    counting_line<double> model;
    auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.125, .momentum = 0}, world, precision::fp64{});
    std::vector<float> const x{0.5F, 1}, none{-1, -1}, some{2, -1};
    auto const done = trainer.step(x, none);
    if (done.loss != 0 || done.norm != 0 || done.skipped || model.values != std::vector<double>{1, 0.25})
      throw error("a step without targets has changed something");
    auto const one = trainer.step(x, world.rank() == 1 ? some : none);  // (0.5 + 0.25 - 2)^2
    if (one.loss != 1.5625 || model.values[1] != 0.25 + 0.125 * 2 * 1.25)
      throw error("the rank without targets counts");
    data::in_memory const empty(x, none, {.inputs = 1, .targets = 1});
    if (trainer.evaluate(empty) != 0) throw error("the mean of nothing is not 0");
  });
  auto const refused = [](double count) {
    return sentence_of<config_error>([&] { static_cast<void>(sum_of({1, count}, 8)); });
  };
  CHECK(refused(-1) == "trireme::model: forward() has counted -1 targets of 8 samples; a count must be from 0 to 2^31");
  CHECK(refused(std::nan("")) != "");
  CHECK(refused(1e10) != "");
}

TEST_CASE("gradients of a counted loss are checked like those of its mean", "[train][plain_model][testing]") {
  counting_line<double> model;
  std::vector<float> const x{0.5F, 1, -1}, y{2, -1, 3};
  CHECK(testing::check_gradients(model, make_samples(tensor_view(x), tensor_view(y))));
}

namespace {

/// A model whose gradient is always 1, independently of its loss.
struct told_loss {
  double loss = 1;
  std::vector<float> value{2}, gradient{0};
  void visit_parameters(auto&& visit) { visit("value", tensor_view{value}, tensor_view{gradient}); }
  double forward(samples const&) { return loss; }
  void backward(auto&& ready) {
    gradient = {1};
    ready("value");
  }
};

}  // namespace

TEST_CASE("a step whose loss is not finite is skipped on all ranks, and the report has that loss",
          "[train][plain_model]") {
  watchdog const guard("an infinite loss");
  auto const infinity = std::numeric_limits<double>::infinity();
  for (int const ranks : {1, 2}) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      told_loss model;
      auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.5, .momentum = 0}, world);
      std::vector<float> const x{1, 2};
      auto const step = [&](double loss) {
        model.loss = world.rank() == world.size() - 1 ? loss : 1;
        return trainer.step(x, x);
      };
      for (double const bad : {infinity, -infinity, std::nan("")}) {
        auto const done = step(bad);
        if (!done.skipped || model.value[0] != 2) throw error("the step was taken");
        if (done.loss != bad && !(std::isnan(bad) && std::isnan(done.loss))) throw error(text("told ", done.loss));
      }
      if (step(1).skipped || model.value[0] != 1.5F) throw error("the next step was not taken");
      model.loss = infinity;
      if (trainer.evaluate(line) != infinity) throw error("evaluate() tells something else");
      int steps = 0;
      double last = 0;
      trainer.on_step([&](step_report const& done) { ++steps, last = done.loss; });
      auto const said =
          sentence_of<numeric_error>([&] { trainer.fit(line, {.steps = 40, .batch = 8, .check_every = 0}); });
      if (!contains(said, "trireme::trainer: no finite loss in 10 steps, up to step 13; lower") || steps != 9 ||
          last != infinity || model.value[0] != 1.5F)
        throw error("said \"" + said + "\"");
    });
  }
}
