// Models of images train in CUDA memory as in host memory (training.hpp), and a checkpoint moves between the two.
#include <cmath>

#include "../../formats/scratch.hpp"
#include "training.hpp"
#include "trireme/nn/convnet.hpp"
#include "trireme/nn/vit.hpp"

using namespace on_device;

namespace {

optim::sgd const moving{.learning_rate = 0.05, .momentum = 0.9, .clip = 1.0};

/// Images of noise around a brightness that depends on their class.
struct pictures {
  nn::image each;
  std::int64_t classes;
  [[nodiscard]] std::int64_t size() const { return 32; }
  [[nodiscard]] dtype input_type() const { return dtype::f32; }
  [[nodiscard]] dtype target_type() const { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {each.height, each.width, each.channels}; }
  [[nodiscard]] shape target_shape() const { return {}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<float*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      auto const kind = id % classes;
      *out++ = static_cast<std::int32_t>(kind);
      for (std::int64_t i = 0; i < each.size(); ++i) {
        auto const place = static_cast<double>(id * each.size() + i);
        *in++ = static_cast<float>(0.5 * std::sin(1.7 * place * place) + static_cast<double>(kind) - 1);
      }
    }
  }
};

/// A residual network with batch norm: strides of 1 and 2, shortcuts with and without a convolution.
nn::convnet const net{.images = {8, 8, 2}, .classes = 3, .blocks = 1, .channels = 4};

struct part {
  std::int64_t stop_after = -1;
  std::string load{}, save{};
};
/// Nine steps of the network, or the part of them between two checkpoints. Its weights include the running averages of
/// its norms.
template <class Space>
outcome train_net(int ranks, part const& which = {}) {
  watchdog const guard("a training of a convolutional network in CUDA memory");
  outcome out;
  launch_in<Space>(ranks, std::chrono::seconds(60), [&](auto& world) {
    auto trainer = make_trainer(net, moving, world, parallel::data{}, precision::fp32{});
    trainer.initialise(5);
    if (!which.load.empty()) trainer.load(which.load);
    trainer.on_step([&](step_report const& done) {
      if (world.rank() == 0) out.losses.push_back(done.loss);
    });
    trainer.fit(pictures{net.images, net.classes}, {.steps = 9, .batch = 8, .stop_after = which.stop_after});
    if (!which.save.empty()) trainer.save(which.save);
    trainer.for_each_parameter([&](std::string const&, shape const&, std::span<float const> values) {
      if (world.rank() == 0) out.weights.insert(out.weights.end(), values.begin(), values.end());
    });
  });
  return out;
}

}  // namespace

TEST_CASE("a vision transformer in CUDA memory", "[vision]") {
  nn::vit const model{
      .images = {12, 12, 2}, .side = 4, .classes = 5, .layers = 2, .heads = 3, .channels = 24, .hidden = 40};
  expect_the_hosts_training("vit", 1, model, moving, parallel::data{}, precision::fp32{},
                            pictures{model.images, model.classes}, 1e-5);
}

TEST_CASE("a convolutional network in CUDA memory", "[vision]") {
  for (int const ranks : {1, 2}) {
    CAPTURE(ranks);
    auto const here = train_net<host>(ranks);
    CHECK(here.losses.back() < here.losses.front());
    CHECK(distance(train_net<cuda>(ranks), here) <= 1e-5);
  }
}

TEST_CASE("a checkpoint of a network with batch norm goes from the host to a device and back", "[vision]") {
  scratch first, second;
  auto joined = train_net<host>(1, {.stop_after = 3, .save = first.path()});
  auto const there = train_net<cuda>(1, {.stop_after = 6, .load = first.path(), .save = second.path()});
  auto const back = train_net<host>(1, {.load = second.path()});
  for (auto const* const each : {&there, &back})
    joined.losses.insert(joined.losses.end(), each->losses.begin(), each->losses.end());
  joined.weights = back.weights;
  CHECK(distance(joined, train_net<host>(1)) <= 1e-5);
}
