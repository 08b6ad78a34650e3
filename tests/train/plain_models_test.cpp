// test-sanitize: none
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../watchdog.hpp"
#include "trireme/trireme.hpp"

// What a model with storage and kernels of its own may have besides parameters: purposes, outputs, buffers.

using namespace trireme;

namespace {

auto const line = data::function([](float x) { return 3 * x + 1; }, {.samples = 64});

/// y = slope * (x - mean) + shift, where mean is that of the batch in training, and a running one otherwise.
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
    auto trainer = make_trainer(model, optim::sgd{.rate = 0.05}, world);
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
    auto again = make_trainer(other, optim::sgd{.rate = 0.05}, world);
    again.load(folder.path());
    if (other.running != model.running || other.batches != model.batches) throw error("buffers were not loaded");
    if (again.state_hash() != hash) throw error("another state");
    other.running[0] += 1;
    if (again.state_hash() == hash) throw error("buffers are not in the hash");
  });
}

TEST_CASE("a plain model is told what a pass is for, and predicts", "[train][plain_model]") {
  watchdog const guard("purposes");
  launch(comm::threads{.ranks = 2}, [](auto& world) {
    centred<shared_buffers::mean> model;
    auto trainer = make_trainer(model, optim::sgd{.rate = 0.1}, world);
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
