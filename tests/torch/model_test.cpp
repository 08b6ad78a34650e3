// test-alone: against_ddp_test.py runs it
// test-timeout: 240
#include "trireme/interop/torch.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "../formats/scratch.hpp"
#include "torch_cases.hpp"

// A torch::nn::Module in a trainer: every strategy as of any plain model.

using namespace torch_cases;

namespace {

/// What plain models may have: a normalisation with buffers, a frozen layer, dropout that only training sees.
struct small_impl : torch::nn::Module {
  small_impl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 8));
    last = register_module("last", torch::nn::Linear(8, 1));
    for (auto& each : second->parameters()) each.requires_grad_(false);
  }
  Tensor forward(Tensor const& x) {
    saw_training = is_training() && norm->is_training();
    return last(torch::tanh(second(torch::tanh(norm(first(x))))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  bool saw_training = false;
};
using small = torch::nn::ModuleHolder<small_impl>;

data::in_memory<float, float> samples_of_a_plane() {
  std::vector<float> x, y;
  auto const all = numbers({64, 4}, 9);
  for (std::int64_t i = 0; i < 64; ++i) {
    float sum = 0;
    for (std::int64_t k = 0; k < 4; ++k) {
      x.push_back(all[i][k].item<float>());
      sum += x.back() * static_cast<float>(k - 1);
    }
    y.push_back(sum);
  }
  return {x, y, {.inputs = 4, .targets = 1}};
}

struct outcome {
  Tensor values{}, buffers{};
  double first = 0, last = 0;
  std::uint64_t hash = 0;
};

template <class... Policies>
std::vector<outcome> trained(int ranks, Policies const&... policies) {
  auto const data = samples_of_a_plane();
  return on_ranks<outcome>(ranks, [&](auto& world) {
    small net;
    fill(*net, 4 + static_cast<std::uint64_t>(world.rank()));
    interop::broadcast(net, world);
    auto model = interop::torch_model(net, torch::nn::MSELoss());
    auto trainer = make_trainer(model, optim::adamw{.learning_rate = 2e-2}, world, policies...);
    auto const before = values_of(*net->second);
    auto const report = trainer.fit(data, {.steps = 60, .batch = 16});
    if (!before.equal(values_of(*net->second))) throw std::runtime_error("a frozen layer has changed");
    outcome found{values_of(*net), net->norm->running_mean.clone(), report.first_loss, report.last_loss, 0};
    found.hash = trainer.state_hash();
    return found;
  });
}

}  // namespace

TEST_CASE("zero<1> and zero<2> train a torch module to the bits of data, and other strategies train it", "[torch]") {
  auto const data = trained(2);
  for (auto const& each : data) {
    CHECK(each.last < 0.2 * each.first);
    CHECK(each.values.equal(data[0].values));
    CHECK(each.buffers.equal(data[0].buffers));
  }
  for (auto const& found : {trained(2, parallel::zero<1>{}), trained(2, parallel::zero<2>{})}) {
    for (auto const& each : found) {
      CHECK(each.values.equal(data[0].values));
      CHECK(each.hash == data[0].hash);
    }
  }
  // Applied at once, gradients that ranks have pushed are those of zero<1>; later, they still train.
  CHECK(trained(2, parallel::parameter_server{})[1].values.equal(data[0].values));
  for (auto const& found :
       {trained(2, parallel::diloco{.period = 5}), trained(2, parallel::parameter_server{.staleness = 1})}) {
    for (auto const& each : found) {
      CHECK(each.last < 0.3 * each.first);
      CHECK(each.values.equal(found[0].values));
    }
  }
}

TEST_CASE("a torch module is trained with every compressor", "[torch]") {
  using namespace compression;
  using any = one_of<none, cast<bf16>, top_k, power_sgd, error_feedback<top_k>>;
  auto const plain = trained(2);
  for (any const& exact : {any{none{}}, any{top_k{.ratio = 1}}})
    CHECK(trained(2, exact)[1].values.equal(plain[0].values));
  for (any const& lossy : {any{cast<bf16>{}}, any{top_k{.ratio = 0.02F}}, any{power_sgd{.rank = 1}},
                           any{error_feedback<top_k>{{.ratio = 0.02F}}}}) {
    INFO(describe(lossy));
    auto const found = trained(2, lossy);
    CHECK(found[0].last < 0.6 * found[0].first);
    CHECK(found[1].values.equal(found[0].values));
    CHECK(!found[0].values.equal(plain[0].values));
  }
}

TEST_CASE("a torch module predicts, evaluates and is refused as plain models are", "[torch]") {
  comm::self_world world;
  small net;
  fill(*net, 4);
  auto const data = samples_of_a_plane();
  auto trainer = make_trainer(interop::torch_model(net, torch::nn::MSELoss()),
                              optim::sgd{.learning_rate = 1e-2, .momentum = 0}, world);
  auto const evaluated = trainer.evaluate(data);
  CHECK(!net->saw_training);
  std::vector<std::int64_t> ids(64);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
  std::vector<float> x(64 * 4), y(64);
  data.read(ids, x.data(), y.data());
  auto const outputs = trainer.predict(tensor_view<float>(x.data(), {64, 4}));
  double sum = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    auto const off = static_cast<double>(outputs.span()[i]) - static_cast<double>(y[i]);
    sum += off * off / 64;
  }
  CHECK(outputs.extents() == shape{64, 1});
  CHECK(sum == Approx(evaluated).epsilon(1e-5));
  auto const weight = net->first->weight.clone();
  trainer.step(tensor_view<float>(x.data(), {64, 4}), tensor_view<float>(y.data(), {64, 1}));
  CHECK(net->saw_training);
  CHECK(distance(weight - 1e-2 * net->first->weight.grad(), net->first->weight) < 1e-7);  // in the module's own memory

  struct forgets_impl : small_impl {
    Tensor forward(Tensor const& x) { return first(x).sum(1, true); }
  };
  auto const forgets = std::make_shared<forgets_impl>();
  auto of = [&](interop::torch_model_options const& options) {
    return make_trainer(interop::torch_model(forgets, torch::nn::MSELoss(), options), optim::sgd{}, world);
  };
  auto strict = of({});
  CHECK(sentence_of([&] { strict.fit(data, {.steps = 1, .batch = 16}); }) ==
        "trireme::interop::torch_model: parameter \"norm.weight\" got no gradient; if a batch need not use all "
        "parameters, say {.unused_parameters = true}, and requires_grad_(false) of what is never trained");
  of({.unused_parameters = true}).fit(data, {.steps = 2, .batch = 16});

  net->to(at::kDouble);
  CHECK(sentence_of([&] {
          static_cast<void>(make_trainer(interop::torch_model(net, torch::nn::MSELoss()), optim::sgd{}, world));
        }) ==
        "trireme::interop::torch_model: parameter \"first.weight\" has elements of Double, which this trainer does "
        "not take; of Double it does with torch_model<double> and precision::fp64");
}

TEST_CASE("modules of double and of bfloat16 are trained in their own types", "[torch]") {
  comm::self_world world;
  auto const x = numbers({8, 4}, 1).to(at::kDouble);
  auto const step_of = [&]<class T>(auto& trainer, T) {
    auto const in = x.to(interop::detail::torch_type(dtype_of<T>));
    auto const out = in.sum(1, true);
    return trainer.step(interop::detail::view_of<T>(in), interop::detail::view_of<T>(out));
  };
  torch::nn::Linear wide(4, 1);
  wide->to(at::kDouble);
  auto exact = make_trainer(interop::torch_model<double>(wide, torch::nn::MSELoss()),
                            optim::sgd{.learning_rate = 1e-2, .momentum = 0}, world, precision::fp64{});
  auto const before = wide->weight.clone();
  step_of(exact, double{});
  CHECK(distance(before - 1e-2 * wide->weight.grad(), wide->weight) < 1e-15);

  struct narrow_impl : torch::nn::Module {
    narrow_impl() {
      linear = register_module("linear", torch::nn::Linear(4, 1));
      linear->to(at::kBFloat16);
      shift = register_parameter("shift", torch::zeros({1}));
    }
    Tensor forward(Tensor const& in) { return linear(in.to(at::kBFloat16)).to(at::kFloat) + shift; }
    torch::nn::Linear linear{nullptr};
    Tensor shift{};
  };
  auto const narrow = std::make_shared<narrow_impl>();
  auto trainer = make_trainer(interop::torch_model(narrow, torch::nn::MSELoss()),
                              optim::sgd{.learning_rate = 0.05, .momentum = 0}, world);
  double first = 0, last = 0;
  for (int step = 0; step < 100; ++step) (step == 0 ? first : last) = step_of(trainer, float{}).loss;
  CHECK(narrow->linear->weight.scalar_type() == at::kBFloat16);
  CHECK(last < 0.05 * first);
}

namespace {

struct seen_impl : torch::nn::Module {
  seen_impl() { linear = register_module("linear", torch::nn::Linear(4, 1)); }
  Tensor forward(Tensor const& x) {
    auto out = linear(x);
    seen = out.scalar_type();
    return out;
  }
  torch::nn::Linear linear{nullptr};
  at::ScalarType seen = at::kFloat;
};

/// float, and the loss scale of fp16 nevertheless.
struct scaled_fp32 : precision::fp32 {
  precision::fp16 scale{};
  struct instance : precision::fp16::instance {
    explicit instance(scaled_fp32 const& what) : precision::fp16::instance(what.scale) {}
  };
  friend bool operator==(scaled_fp32 const&, scaled_fp32 const&) = default;
};

}  // namespace

TEST_CASE("a torch module runs under autocast in a trainer of bf16", "[torch]") {
  comm::self_world world;
  auto const net = std::make_shared<seen_impl>();
  auto trainer = make_trainer(interop::torch_model(net, torch::nn::MSELoss()),
                              optim::sgd{.learning_rate = 0.05, .momentum = 0}, world, precision::bf16{});
  auto const report = trainer.fit(samples_of_a_plane(), {.steps = 100, .batch = 16});
  CHECK(net->seen == at::kBFloat16);
  CHECK(net->linear->weight.grad().scalar_type() == at::kFloat);
  CHECK(report.last_loss < 0.05 * report.first_loss);
  CHECK(net->forward(torch::zeros({1, 4})).scalar_type() == at::kFloat);  // outside the trainer
  static_cast<void>(trainer.predict(tensor_view<float>(std::vector<float>(4).data(), {1, 4})));
  CHECK(net->seen == at::kBFloat16);
}

TEST_CASE("a loss scale in a trainer changes no bit of what a torch module learns", "[torch]") {
  auto const whole = trained(2), scaled = trained(2, scaled_fp32{});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(scaled[rank].values.equal(whole[rank].values));
    CHECK(scaled[rank].last == whole[rank].last);
  }
}

TEST_CASE("a torch module is trained in float16 with a loss scale that is state", "[torch]") {
  struct outcome {
    std::vector<bool> skipped{};
    double first = 0, last = 0;
    std::uint64_t hash = 0;
    at::ScalarType seen = at::kFloat;
  };
  scratch folder;
  // The largest scale is too large, so that the first steps are skipped.
  auto const train = [&](auto const& parallel, int ranks, std::int64_t load, std::int64_t stop) {
    return on_ranks<outcome>(ranks, [&](auto& world) {
      auto const net = std::make_shared<seen_impl>();
      fill(*net, 4);
      precision::fp16 const searching{.first_scale = precision::fp16::largest_scale, .growth_steps = 6};
      auto trainer = make_trainer(interop::torch_model(net, torch::nn::MSELoss()), optim::adamw{.learning_rate = 5e-2},
                                  world, searching, parallel);
      if (load > 0) trainer.load(folder.path());
      outcome found;
      trainer.on_step([&](step_report const& done) { found.skipped.push_back(done.skipped); });
      auto const report = trainer.fit(samples_of_a_plane(), {.steps = 120, .batch = 16, .stop_after = stop});
      if (stop == 17) trainer.save(folder.path());
      found.first = report.first_loss, found.last = report.last_loss;
      found.hash = trainer.state_hash(), found.seen = net->seen;
      return found;
    });
  };
  if (!interop::detail::casts_to_float16) {
    CHECK(contains(sentence_of([&] { train(parallel::data{}, 1, 0, 17); }), "does not cast to Half on the CPU"));
    return;
  }
  auto const through = train(parallel::data{}, 2, 0, -1);
  CHECK(through[0].seen == at::kHalf);
  CHECK(through[0].skipped[0]);
  CHECK(through[1].skipped == through[0].skipped);
  CHECK(through[0].last < 0.1 * through[0].first);
  for (auto const& sharded : {train(parallel::zero<1>{}, 2, 0, -1), train(parallel::zero<2>{}, 2, 0, -1)})
    CHECK(sharded[0].hash == through[0].hash);
  train(parallel::data{}, 2, 0, 17);
  CHECK(train(parallel::data{}, 2, 17, -1)[0].hash == through[0].hash);
}

// The two models of against_ddp_test.py, which starts this with the numbers in a folder. Names and order are Python's.
namespace {

struct cnn_impl : torch::nn::Module {
  cnn_impl() {
    using namespace torch::nn;
    conv1 = register_module("conv1", Conv2d(Conv2dOptions(1, 4, 3).padding(1)));
    norm1 = register_module("norm1", BatchNorm2d(4));
    conv2 = register_module("conv2", Conv2d(Conv2dOptions(4, 8, 3).padding(1)));
    norm2 = register_module("norm2", BatchNorm2d(8));
    linear = register_module("linear", Linear(8 * 7 * 7, 10));
  }
  Tensor forward(Tensor const& x) {
    auto h = torch::max_pool2d(torch::relu(norm1(conv1(x))), 2);
    h = torch::max_pool2d(torch::relu(norm2(conv2(h))), 2);
    return linear(h.flatten(1));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear linear{nullptr};
};

struct transformer_impl : torch::nn::Module {
  transformer_impl() {
    using namespace torch::nn;
    table = register_module("table", Embedding(32, 16));
    block = register_module(
        "block", TransformerEncoderLayer(TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0)));
    head = register_module("head", Linear(16, 32));
  }
  Tensor forward(Tensor const& x) {  // (batch, positions) -> (batch * positions, 32)
    return head(block(table(x).transpose(0, 1)).transpose(0, 1)).flatten(0, 1);
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::TransformerEncoderLayer block{nullptr};
  torch::nn::Linear head{nullptr};
};

Tensor read(std::filesystem::path const& file, at::ScalarType type) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> const bytes{std::istreambuf_iterator<char>(in), {}};
  auto const n = static_cast<std::int64_t>(bytes.size() / at::elementSize(type));
  return torch::from_blob(const_cast<char*>(bytes.data()), {n}, at::TensorOptions().dtype(type)).clone();
}
/// Parameters, then floating-point buffers.
std::vector<Tensor> state_of(torch::nn::Module const& module) {
  auto all = module.parameters();
  for (auto const& each : module.buffers())
    if (each.is_floating_point()) all.push_back(each);
  return all;
}

template <class Module>
void train_like_python(std::filesystem::path const& folder, Tensor const& inputs) {
  auto const targets = read(folder / "targets", at::kLong);
  auto const start = read(folder / "start", at::kFloat);
  auto const steps = inputs.size(0), share = inputs.size(1) / 2;
  auto const target_rows = targets.reshape({steps, 2, -1});
  on_ranks<int>(2, [&](auto& world) {
    auto const own = std::make_shared<Module>();
    if (world.rank() == 0) {
      torch::NoGradGuard const guard;
      std::int64_t from = 0;
      for (auto& each : state_of(*own)) {
        each.copy_(start.slice(0, from, from + each.numel()).reshape(each.sizes()));
        from += each.numel();
      }
    }
    auto ddp = interop::data_parallel(own, world);
    torch::optim::SGD optimizer(own->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
    for (std::int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      auto const x = inputs[step].slice(0, world.rank() * share, (world.rank() + 1) * share);
      torch::cross_entropy_loss(ddp->forward(x), target_rows[step][world.rank()]).backward();
      ddp.finish();
      optimizer.step();
    }
    if (world.rank() == 0) {
      std::ofstream out(folder / "found", std::ios::binary);
      for (auto const& each : state_of(*own)) {
        auto const dense = each.detach().contiguous();
        out.write(static_cast<char const*>(dense.data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
      }
    }
    return 0;
  });
}

}  // namespace

TEST_CASE("trains a model of a folder as Python's DDP has", "[.python]") {
  auto const* named = std::getenv("TRIREME_TORCH_FOLDER");
  REQUIRE(named != nullptr);
  std::filesystem::path const folder = named;
  if (folder.filename() == "cnn") {
    train_like_python<cnn_impl>(folder, read(folder / "inputs", at::kFloat).reshape({50, 16, 1, 28, 28}));
  } else {
    train_like_python<transformer_impl>(folder, read(folder / "inputs", at::kLong).reshape({50, 8, 12}));
  }
}
