// What programs usually instantiate, compiled with every warning (tests/headers.cmake): trainers over precisions,
// models, strategies, meshes and compressors, and the exchange alone.
#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

/// Every call of a trainer.
template <class... Policies>
void train(comm::threads_world& world, data::token_windows const& text, Policies... policies) {
  auto trainer = make_trainer(optim::adamw{.learning_rate = 3e-3, .clip = 1.0}, world, policies...);
  trainer.initialise(7);
  trainer.on_step([](step_report const& done) { fmt::print("{} {}\n", done.loss, done.norm); });
  auto const report = trainer.fit(text, {.steps = 2, .batch = 4, .micro_batches = 2});
  fmt::print("{} {} {}\n", report.first_loss, trainer.evaluate(text, 8), trainer.state_hash());
  trainer.save("checkpoint");
  trainer.load("checkpoint");
}

/// A plain model: storage and kernels of its own.
struct line {
  std::vector<float> factor{1.0F};
  std::vector<float> gradient{0.0F};
  samples last{};

  void visit_parameters(auto&& visit) { visit("factor", tensor_view{factor}, tensor_view{gradient}); }
  float forward(samples const& batch) {
    last = batch;
    auto const x = batch.inputs.as<float>();
    auto const y = batch.targets.as<float>();
    float loss = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) loss += std::abs(factor[0] * x[i] - y[i]);
    return loss;
  }
  void backward(auto&& ready) { ready("factor"); }
};

}  // namespace

/// The README's program, and its neighbours.
void programs() {
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    auto data = data::function([](float x) { return std::sin(x); }, {.samples = 4096});
    nn::mlp const net{.inputs = 1, .hidden = {64, 64}, .outputs = 1};
    auto trainer = make_trainer(net, optim::adamw{.learning_rate = 3e-3}, world);
    auto const report = trainer.fit(data, {.steps = 500, .batch = 64});
    std::vector<float> const features{0.5F};
    fmt::print("{} {}\n", report.last_loss, trainer.predict(features)[0]);
    trainer.step(features, features);
    make_trainer(net, optim::sgd{.learning_rate = 1e-2}, world, precision::fp64{}, parallel::zero<1>{})
        .fit(data, {.steps = 1});
    make_trainer(net, optim::adamw{}, world, compression::top_k{.ratio = 0.1F}).fit(data, {.steps = 1});
    make_trainer(net, optim::adamw{}, world, precision::bf16{}, compression::error_feedback<compression::top_k>{})
        .fit(data, {.steps = 1});
    make_trainer(line{}, optim::adamw{}, world, parallel::zero<2>{}).fit(data, {.steps = 1});
  });
  launch(comm::self{}, [](auto& world) {
    make_trainer(nn::mlp{}, optim::adamw{}, world).fit(data::function([](float x) { return x; }, {}), {.steps = 1});
  });
}

/// A GPT in every precision and under every axis.
void trainers(comm::threads_world& world, data::token_windows const& text) {
  nn::gpt const gpt{};
  train(world, text, gpt);
  train(world, text, gpt, parallel::zero<1>{}, precision::bf16{}, compression::cast<bf16>{});
  train(world, text, gpt, parallel::zero<2>{}, precision::fp64{});
  train(world, text, gpt, parallel::zero<3>{}, precision::bf16{});
  train(world, text, gpt,
        parallel::mesh{parallel::zero<1>{.ways = 2}, parallel::pipeline<schedule::zb_v>{.stages = 2},
                       parallel::context{.ways = 1}, parallel::tensor{.ways = 2}, parallel::sequence{}},
        precision::bf16{});
  train(world, text, gpt, parallel::mesh{parallel::data{}, parallel::expert{.ways = 2}});
  train(world, text, gpt, parallel::mesh{parallel::data{}, parallel::any_pipeline{.schedule = "1f1b", .stages = 2}});
}

/// A training loop of one's own, in float and in double.
template <class T>
void exchange(comm::threads_world& world) {
  std::vector<T> weights(50), gradients(50);
  std::vector<foreign_parameter<T>> const mine{{"weights", tensor_view{weights}, tensor_view{gradients}}};
  auto exchange = make_exchange(mine, world, parallel::zero<1>{}, compression::top_k{.ratio = 0.5F});
  exchange.begin();
  exchange.ready("weights");
  if (exchange.finish().finite)
    for (auto const& part : exchange.segments()) part.value[0] -= part.gradient.terms[0][0];
  exchange.publish();
}
template void exchange<float>(comm::threads_world&);
template void exchange<double>(comm::threads_world&);
