#include "trireme/nn/convnet.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "../catch.hpp"
#include "../support/golden.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/testing/gradient_check.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
namespace safetensors = formats::safetensors;

namespace {

/// Numbers between -1 and 1 without a pattern.
std::vector<float> numbers(std::int64_t n) {
  std::vector<float> all(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(std::sin(1.7 * static_cast<double>(i * i)));
  return all;
}
/// Samples of images, with a class each.
struct pictures {
  nn::image each;
  std::int64_t count, classes;
  std::vector<float> x = numbers(count * each.size());
  std::vector<std::int32_t> y{};
  pictures(nn::image const& of, std::int64_t n, std::int64_t kinds) : each(of), count(n), classes(kinds) {
    for (std::int64_t i = 0; i < n; ++i) y.push_back(static_cast<std::int32_t>(i * i % kinds));
  }
  [[nodiscard]] auto inputs(std::int64_t n) const { return tensor_view<float const>(x.data(), {n, each.size()}); }
  [[nodiscard]] auto targets(std::int64_t n) const { return tensor_view<std::int32_t const>(y.data(), {n}); }
  [[nodiscard]] samples first(std::int64_t n) const { return make_samples(inputs(n), targets(n)); }
  [[nodiscard]] auto all() const { return data::in_memory(inputs(count), targets(count)); }
};

/// All layers of images, of odd sizes: windows that overlap and windows that leave pixels out.
struct odd {
  using policy_category = slot::model;
  std::int64_t stride = 1;
  friend bool operator==(odd const&, odd const&) = default;

  void units(auto&& emit) const {
    using namespace nn;
    auto const wide = stride == 1;
    emit(block{
        "a", 0,
        chain(features{5 * 6 * 2}, image{5, 6, 2}, named("c", conv2d{.outputs = 3, .stride = stride, .padding = 1}),
              named("n", batch_norm{.epsilon = 0.1}), silu())});
    image const middle{wide ? 5 : 3, wide ? 6 : 3, 3};
    auto const left = chain(named("l", conv2d{.outputs = 4, .kernel = 2, .stride = 2, .bias = false}), silu(),
                            named("p", conv2d{.outputs = 4, .kernel = 1}));
    auto const right = chain(named("s", conv2d{.outputs = 4, .kernel = 1}), max_pool2d{});
    emit(block{"b", middle.size(),
               chain(middle, sum(left, right), residual(named("r", conv2d{.outputs = 4, .kernel = 1})), tanh())});
    image const last{wide ? 2 : 1, wide ? 3 : 1, 4};
    emit(block{"c", last.size(),
               chain(last, max_pool2d{.kernel = 2, .stride = 1, .padding = 1}, average_pool2d{.kernel = 2, .stride = 1},
                     named("f", linear{.outputs = 3, .start = {initial::distribution::normal, 0.3}}),
                     named("n", batch_norm{}), loss::cross_entropy{})});
  }
};

nn::convnet const tiny{.images = {8, 8, 2}, .classes = 3, .blocks = 1, .channels = 4};

/// PyTorch's order of a weight's numbers, (outputs, inputs, height, width) or (outputs, inputs), as ours.
std::vector<double> in_our_order(std::vector<double> const& theirs, shape const& extents) {
  if (extents.rank() < 2) return theirs;
  auto const outputs = extents[0], inputs = extents[1], pixels = extents.size() / outputs / inputs;
  std::vector<double> ours(theirs.size());
  for (std::int64_t i = 0; i < extents.size(); ++i) {
    auto const pixel = i % pixels, in = i / pixels % inputs, out = i / pixels / inputs;
    ours[static_cast<std::size_t>((pixel * inputs + in) * outputs + out)] = theirs[static_cast<std::size_t>(i)];
  }
  return ours;
}
double distance(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0, largest = 1e-12;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return most / largest;
}

}  // namespace

TEST_CASE("a convnet has the loss, the gradients and the running statistics of PyTorch", "[nn][golden]") {
  auto const file = golden::open("convnet.safetensors");
  nn::convnet const model{.images = {7, 7, 2}, .classes = 3, .blocks = 1, .channels = 4};
  auto const x = golden::read<float>(file, "images");
  auto const y = golden::read<std::int32_t>(file, "targets");
  data::in_memory const data(tensor_view<float const>(x.data(), {5, 98}),
                             tensor_view<std::int32_t const>(y.data(), {5}));
  auto const golden = [&](std::string const& kind, std::string const& name) {
    auto const full = kind + "/" + name;
    return in_our_order(golden::read<double>(file, full), file.at(full).extents);
  };
  // One step of plain descent by 1: what a parameter has moved by is its gradient.
  comm::self_world alone;
  auto trainer = make_trainer(model, optim::sgd{.learning_rate = 1}, alone, precision::fp64{});
  trainer.change_parameters([&](std::string const& name, auto const&, std::int64_t, auto values) {
    if (name.find("running") != std::string::npos) return;
    auto const theirs = golden("parameter", name);
    REQUIRE(static_cast<std::size_t>(values.size()) == theirs.size());
    std::copy(theirs.begin(), theirs.end(), values.span().begin());
  });
  auto const loss = trainer.fit(data, {.steps = 1, .batch = 5}).last_loss;
  CHECK(std::abs(loss - golden::read<double>(file, "loss")[0]) < 1e-12);
  int seen = 0;
  trainer.for_each_state([&](std::string const& kept, auto const&, std::int64_t, auto values) {
    if (!kept.starts_with("value/")) return;
    auto const name = kept.substr(6);
    INFO(name);
    ++seen;
    std::vector<double> const now(values.span().begin(), values.span().end());
    if (name.find("running") != std::string::npos) {
      CHECK(distance(now, golden("buffer", name)) < 1e-10);
    } else {
      auto moved = golden("parameter", name);
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] -= now[i];
      CHECK(distance(moved, golden("gradient", name)) < 1e-9);
    }
  });
  CHECK(seen == 9 + 9 * 4 + 2);
  trainer.change_parameters([&](std::string const& name, auto const&, std::int64_t, auto values) {
    if (name.find("running") != std::string::npos) return;
    auto const theirs = golden("parameter", name);
    std::copy(theirs.begin(), theirs.end(), values.span().begin());
  });
  CHECK(std::abs(trainer.evaluate(data) - golden::read<double>(file, "evaluated")[0]) < 1e-10);
}

TEST_CASE("layers of images have the gradients of central differences", "[nn]") {
  pictures const some({5, 6, 2}, 4, 3);
  for (std::int64_t const stride : {1, 2}) {
    auto const report = testing::check_gradients(odd{stride}, some.first(4), {.most = 0});
    INFO("stride " << stride << ": " << to_string(report));
    CHECK(report);
  }
  pictures const square(tiny.images, 3, 3);
  auto const report = testing::check_gradients(tiny, square.first(3));
  INFO(to_string(report));
  CHECK(report);
}

TEST_CASE("a convnet trains equally on one rank and on several, in the memory of its plan", "[nn]") {
  watchdog const guard("a convnet on several ranks", std::chrono::seconds(100));
  pictures const some(tiny.images, 32, 3);
  auto const data = some.all();
  struct outcome {
    double loss = 0, evaluated = 0;
    std::uint64_t hash = 0;
  };
  auto const train = [&](auto& world, auto const&... policies) {
    auto trainer = make_trainer(tiny, optim::sgd{.learning_rate = 0.05, .clip = 0.5}, world, policies...);
    auto const planned = plan(trainer, data, {.samples = 16, .micro_batches = 4}).memory.activations;
    auto const loss = trainer.fit(data, {.steps = 6, .batch = 16, .micro_batches = 4}).last_loss;
    auto const taken = static_cast<std::int64_t>(trainer.engine().peak_bytes());
    if (planned != taken) throw error(text("the plan says ", planned, " bytes of activations; ", taken, " were taken"));
    return outcome{loss, trainer.evaluate(data), trainer.state_hash()};
  };
  parallel::data exact;
  exact.reproducible = true;
  comm::self_world alone;
  auto const serial = train(alone), tree = train(alone, exact);

  std::vector<outcome> all(8);
  outcome same, local;
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    using namespace parallel;
    outcome const here[] = {
        train(world),
        train(world, zero<1>{}),
        train(world, zero<3>{}),
        train(world, mesh{pipeline<schedule::zb_h1>{.stages = 2}}),
        train(world, mesh{parallel::tensor{.ways = 2}, sequence{}}),
    };
    auto const bits = train(world, exact), alone_for_a_while = train(world, diloco{.period = 2});
    if (world.rank() != 0) return;
    std::copy(std::begin(here), std::end(here), all.begin());
    same = bits;
    local = alone_for_a_while;
  });
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    auto const here = train(world, parallel::mesh{parallel::pipeline<schedule::one_f_one_b>{.stages = 3}});
    if (world.rank() == 0) all[5] = here;
  });
  launch(comm::threads{.ranks = 4}, [&](auto& world) {
    using namespace parallel;
    auto const cut = train(world, mesh{zero<3>{}, parallel::tensor{.ways = 2}});
    auto const staged = train(world, mesh{zero<1>{}, pipeline<schedule::zb_h1>{.stages = 2}});
    if (world.rank() == 0) all[6] = cut, all[7] = staged;
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO("case " << i);
    CHECK(all[i].loss == Approx(serial.loss).epsilon(1e-4));
    CHECK(all[i].evaluated == Approx(serial.evaluated).epsilon(1e-3));
  }
  CHECK(same.hash == tree.hash);
  CHECK(local.evaluated < 1.5 * serial.evaluated);  // not a number, if a running variance were below 0
}

TEST_CASE("running statistics are not gradients: norm, clipping and moments exclude them", "[nn]") {
  pictures const some(tiny.images, 8, 3);
  auto const data = some.all();
  comm::self_world alone;
  auto const run = [&](double clip) {
    auto trainer = make_trainer(tiny, optim::adamw{.learning_rate = 1e-3, .clip = clip}, alone, precision::fp64{});
    double const norm = trainer.fit(data, {.steps = 1, .batch = 8}).last_norm;
    std::map<std::string, std::vector<double>> kept;
    double squares = 0;
    trainer.for_each_state([&](std::string const& name, auto const&, std::int64_t, auto values) {
      auto& to = kept[name];
      to.insert(to.end(), values.span().begin(), values.span().end());
      if (name.starts_with("first_moment/")) {
        for (auto const each : values.span()) squares += each * each;
      }
    });
    return std::tuple(kept, norm, squares);
  };
  auto const [free, norm, squares] = run(0);
  auto const [clipped, same_norm, fewer] = run(1e-3);
  CHECK(norm == same_norm);
  CHECK(fewer < squares);
  CHECK(free.at("value/bn1.running_mean") == clipped.at("value/bn1.running_mean"));
  CHECK(free.at("value/bn1.running_var") == clipped.at("value/bn1.running_var"));
  CHECK(std::none_of(free.begin(), free.end(), [](auto const& each) {
    return each.first.find("running") != std::string::npos && !each.first.starts_with("value/");
  }));
}

TEST_CASE("layers of images refuse what does not fit, in one sentence", "[nn]") {
  using namespace nn;
  auto const sentence = [](auto const& layers, std::int64_t width) {
    return sentence_of<config_error>([&] { expression<environment<precision::fp32>> unit(block{"u", width, layers}); });
  };
  CHECK(sentence(chain(image{5, 5, 2}, named("c", conv2d{.outputs = 3})), 49) ==
        "trireme::nn::image: rows of 49 numbers of u are not images of 5 x 5 x 2 (height, width, channels)");
  CHECK(sentence(chain(named("c", conv2d{.outputs = 3})), 50) ==
        "trireme::nn::conv2d u.c: no layer before it says what images its rows of 50 numbers are; put "
        "nn::image{height, width, channels} of that size before it");
  CHECK(sentence(chain(image{5, 5, 2}, named("c", conv2d{.outputs = 3, .kernel = 7, .padding = 0})), 50) ==
        "trireme::nn::conv2d u.c: a kernel of 7 does not fit into images of 5 x 5 with padding 0");
  CHECK(sentence(chain(image{5, 5, 2}, max_pool2d{.kernel = 2, .padding = 2}), 50) ==
        "trireme::nn::max_pool2d u: kernel 2, stride 2, padding 2, 2 outputs; padding is at least 0 and less than the "
        "kernel, and nothing else is below 1");
  CHECK(sentence(chain(image{5, 2, 5}, average_pool2d{}), 50) ==
        "trireme::nn::average_pool2d u: images of 5 x 2 are not square; say .kernel");
  CHECK(sentence(chain(image{4, 4, 1}, sum(chain(conv2d{.outputs = 4, .kernel = 2, .stride = 2}), chain())), 16) ==
        "trireme::nn::sum: the terms of u are 16 and 16 numbers wide; both must be as wide, and images of one shape");
  CHECK(
      sentence(chain(image{4, 4, 1}, residual(conv2d{.outputs = 4, .kernel = 2, .stride = 2})), 16) ==
      "trireme::nn::residual: a branch of u makes rows of 16 numbers from rows of 16; what is added to its input must "
      "be as wide, and images of one shape");
  CHECK(sentence(chain(named("n", batch_norm{.momentum = 0})), 4) ==
        "trireme::nn::batch_norm u.n: epsilon 1e-05, momentum 0; epsilon is above 0, and momentum in (0, 1]");
  auto const model = [](convnet const& what) { return sentence_of<config_error>([&] { what.validate(); }); };
  CHECK(model({.images = {28, 30, 1}}) == "trireme::nn::convnet: images of 28 x 30; they must be square");
  CHECK(model({.blocks = 0}) == "trireme::nn::convnet: .blocks is 0; it must be at least 1");
  CHECK(model({}) == "");
  CHECK(to_string(convnet{}) ==
        "nn::convnet{.images = {28, 28, 1}, .classes = 10, .blocks = 3, .channels = 16, .norm = {1e-05, 0.1}}");
  comm::self_world alone;
  CHECK(sentence_of<config_error>(
            [&] { static_cast<void>(make_trainer(tiny, optim::sgd{}, alone, compression::top_k{.ratio = 0.1F})); }) ==
        "trireme::exchange: \"bn1.running_mean\" is a moving average that its layer measures, which "
        "compression::top_k{.ratio = 0.1f} would change; leave the compressor out");
}
