#include "trireme/nn/soft_labels.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/data/augment.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/data/one_hot.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/optim/sgd.hpp"
#include "trireme/testing/gradient_check.hpp"
#include "trireme/train/make_trainer.hpp"
#include "trireme/train/metrics.hpp"

using namespace trireme;

namespace {

/// Samples of 3 words, whose first one decides.
struct classifier {
  using policy_category = slot::model;
  void units(auto&& emit) const {
    using namespace nn;
    emit(block{"", 8, chain(named("embed", embedding{.words = 23, .outputs = 8}))});
    emit(block{"", 8, chain(named("fc", linear{.outputs = 4}), loss::cross_entropy{.of_first = true})});
  }
};
std::string to_string(classifier const&) { return "classifier{}"; }

}  // namespace

TEST_CASE("soft_cross_entropy has PyTorch's values", "[nn][losses]") {
  // torch.nn.functional.cross_entropy(x, t, reduction="none") with probabilities, and the gradient of its sum
  std::vector<double> x{0.5, -2, 1.25};
  std::vector<double> const t{0.7, 0.1, 0.2};
  auto const softmax = [&](std::size_t i) {
    double sum = 0;
    for (auto const each : {0.5, -2.0, 1.25}) sum += std::exp(each);
    return std::exp(std::vector<double>{0.5, -2, 1.25}[i]) / sum;
  };
  double expected = 0;
  for (std::size_t i = 0; i < 3; ++i) expected -= t[i] * std::log(softmax(i));
  CHECK(nn::detail::soft_cross_entropy_row<double>(x.data(), t.data(), 3, 2.0, true) ==
        Approx(expected).epsilon(1e-14));
  for (std::size_t i = 0; i < 3; ++i) CHECK(x[i] == Approx(2 * (softmax(i) - t[i])).epsilon(1e-14));
  std::vector<double> large{1000, -1000};
  std::vector<float> const half{0.5F, 0.5F};
  CHECK(nn::detail::soft_cross_entropy_row<double>(large.data(), half.data(), 2, 1.0, false) == Approx(1000));
  for (float const bad : {-0.5F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    CHECK(contains(sentence_of<config_error>([&] {
                     static_cast<void>(nn::detail::soft_cross_entropy_row<double>(large.data(), &bad, 1, 1.0, false));
                   }),
                   "is not a probability"));
  }
}

TEST_CASE("a model with soft labels has their gradients, and takes labels as before", "[nn][losses]") {
  auto const model = nn::soft_labels(classifier{});
  CHECK(to_string(model) == "nn::soft_labels(classifier{})");
  std::vector<std::int32_t> words(15), labels{3, 0, 1, 1, 2};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::int32_t>(i * i % 23);
  std::vector<float> soft(20);
  for (std::size_t i = 0; i < soft.size(); ++i) soft[i] = static_cast<float>(i * i % 7) / 10.0F;
  tensor_view<std::int32_t const> const in(words.data(), {5, 3});
  auto const report = testing::check_gradients(model, make_samples(in, tensor_view<float const>(soft.data(), {5, 4})));
  INFO(to_string(report));
  CHECK(report);
  tensor_view<std::int32_t const> const of(labels.data(), {5});
  CHECK(testing::check_gradients(model, make_samples(in, of)));
}

TEST_CASE("probabilities of 1 and 0 train as labels do", "[nn][losses]") {
  std::vector<float> x(12 * 4);
  std::vector<std::int32_t> y(12);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * i % 17) / 8.0F - 1;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<std::int32_t>(i % 3);
  data::shared_dataset const labels(data::in_memory<float, std::int32_t>(
      tensor_view<float const>(x.data(), {12, 4}), tensor_view<std::int32_t const>(y.data(), {12})));
  auto const soft = data::one_hot(labels, 3);
  comm::self_world self;
  auto const model = nn::soft_labels(nn::mlp_with<nn::loss::cross_entropy>{.inputs = 4, .hidden = {6}, .outputs = 3});
  auto const losses_of = [&](auto const& data) {
    auto trainer = make_trainer(model, optim::sgd{.schedule = optim::constant{0.1}}, self);
    auto const report = trainer.fit(data, {.steps = 5, .batch = 5});
    auto const [seen] = trainer.evaluate(labels, 4, metric::confusion(3));
    return std::vector<double>{report.first_loss, report.last_loss, seen.accuracy()};
  };
  auto const one = losses_of(labels), other = losses_of(soft);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(other[i] == Approx(one[i]).epsilon(1e-5));
  auto trainer = make_trainer(model, optim::sgd{.schedule = optim::constant{0.1}}, self);
  data::in_memory<float, float> const wrong(tensor_view<float const>(x.data(), {12, 4}),
                                            tensor_view<float const>(x.data(), {12, 2}));
  CHECK(contains(sentence_of<config_error>([&] { trainer.fit(wrong, {.steps = 1, .batch = 5}); }),
                 "give each class of each row a probability"));
}

TEST_CASE("a model that takes labels only refuses probabilities in one sentence, which names what takes them",
          "[nn][losses]") {
  std::vector<float> const x(12 * 4, 0.5F);
  std::vector<std::int32_t> const y(12, 1);
  data::shared_dataset const labels(data::in_memory<float, std::int32_t>(
      tensor_view<float const>(x.data(), {12, 2, 2}), tensor_view<std::int32_t const>(y.data(), {12})));
  nn::mlp_with<nn::loss::cross_entropy> const model{.inputs = 4, .hidden = {6}, .outputs = 3};
  auto const sentence = [](std::string const& extents) {
    return "trireme::nn::loss::cross_entropy: the targets are F32 " + extents +
           ", but a label is an I32; for probabilities of classes, as data::one_hot and data::mixup make them, train "
           "nn::soft_labels(model)";
  };
  comm::self_world self;
  auto const said = [&](auto const& of, auto const& data) {
    auto trainer = make_trainer(of, optim::sgd{}, self);
    return sentence_of<config_error>([&] { trainer.fit(data, {.steps = 1, .batch = 4}); });
  };
  auto const mixed = data::augment(data::one_hot(labels, 3), data::mixup{});
  CHECK(said(model, mixed) == sentence("(4, 3)"));
  CHECK(said(model, data::augment(data::one_hot(labels, 3), data::cutmix{})) == sentence("(4, 3)"));
  CHECK(said(model, data::augment(labels, data::mixup{})).empty());  // each label is that of one of the two samples
  CHECK(said(nn::soft_labels(model), mixed).empty());
  auto trainer = make_trainer(model, optim::sgd{}, self);
  CHECK(sentence_of<config_error>([&] { static_cast<void>(trainer.evaluate(data::one_hot(labels, 3), 4)); }) ==
        sentence("(4, 3)"));
}
