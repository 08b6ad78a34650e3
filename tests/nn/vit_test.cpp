// test-sanitize: none
#include "trireme/nn/vit.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../support/golden_step.hpp"
#include "../support/planned_activations.hpp"
#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/schedules/schedules.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/testing/gradient_check.hpp"

using namespace trireme;

namespace {

nn::vit const small{
    .images = {12, 12, 2}, .side = 4, .classes = 5, .layers = 2, .heads = 3, .channels = 24, .hidden = 40};

struct pictures {
  std::vector<float> x = std::vector<float>(24 * 288);
  std::vector<std::int32_t> y{};
  pictures() {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::sin(1.7 * static_cast<double>(i * i)));
    for (std::int32_t i = 0; i < 24; ++i) y.push_back(i * i % 5);
  }
  [[nodiscard]] data::in_memory<float, std::int32_t> all() const {
    return {tensor_view<float const>(x.data(), {24, 12, 12, 2}), tensor_view<std::int32_t const>(y.data(), {24})};
  }
};

}  // namespace

TEST_CASE("a vision transformer has the loss and the gradients of transformers", "[nn][golden]") {
  auto const file = golden::open("vit.safetensors");
  auto const images = golden::read<float>(file, "images");
  auto const targets = golden::read<std::int32_t>(file, "targets");
  data::in_memory<float, std::int32_t> const data(tensor_view<float const>(images.data(), {4, 12, 12, 2}),
                                                  tensor_view<std::int32_t const>(targets.data(), {4}));
  golden::compare_step(small, data, 4, 2, file);
}

TEST_CASE("gradients of a vision transformer with dropout agree with central differences", "[nn]") {
  auto model = small;
  model.dropout = 0.2;
  model.layers = 1;
  pictures const some;
  auto const report = testing::check_gradients(model,
                                               make_samples(tensor_view<float const>(some.x.data(), {3, 288}),
                                                            tensor_view<std::int32_t const>(some.y.data(), {3})),
                                               {.most = 12});
  INFO(to_string(report));
  CHECK(report);
}

TEST_CASE("a vision transformer trains under data, zero, tensor and pipeline as on one rank", "[nn]") {
  watchdog dog("vit");
  auto model = small;
  model.dropout = 0.1;
  toy::training<nn::vit, data::in_memory<float, std::int32_t>> const one{
      model, pictures{}.all(), {.steps = 3, .batch = 6, .micro_batches = 3}};
  auto const serial = one.alone(toy::steady, precision::fp64{});
  auto const compare = [&](int ranks, auto const& policy) {
    INFO(to_string(policy));
    toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-9);
  };
  compare(3, parallel::data{});
  compare(2, parallel::zero<3>{});
  compare(3, parallel::mesh{parallel::tensor{.ways = 3}, parallel::sequence{}});
  compare(4, parallel::mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, parallel::tensor{.ways = 2}});
}

TEST_CASE("a plan of a vision transformer equals its training", "[nn]") {
  watchdog dog("plan");
  auto const data = pictures{}.all();
  check_planned_activations(small, data);
}

TEST_CASE("a vision transformer names a class for each image", "[nn]") {
  comm::self_world self;
  pictures const some;
  auto trainer = make_trainer(small, optim::adamw{}, self);
  auto const named = trainer.predict(tensor_view<float const>(some.x.data(), {7, 12, 12, 2}));
  CHECK(named.extents() == shape{7, 5});
}

TEST_CASE("a vision transformer with impossible sizes is refused", "[nn]") {
  auto const sentence = [](nn::vit const& model) { return sentence_of<config_error>([&] { model.validate(); }); };
  CHECK(sentence({.side = 15}) ==
        "trireme::nn::vit: images of 224 x 224 are not cut into whole squares of 15 x 15 pixels");
  CHECK(sentence({.heads = 5}) == "trireme::nn::vit: 768 channels are not divisible by 5 heads");
  CHECK(sentence({.hidden = -1}) == "trireme::nn::vit: .hidden is -1; it must be at least 0");
  CHECK(sentence({.dropout = 1}) == "trireme::nn::vit: .dropout is 1; it must be in [0, 1)");
  CHECK(sentence(small) == "");
  CHECK(to_string(small).starts_with("nn::vit{.images = {12, 12, 2}, .side = 4,"));
}
