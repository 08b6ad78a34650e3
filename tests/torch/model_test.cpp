// test-timeout: 240
#include "trireme/interop/torch.hpp"

#include <array>
#include <barrier>
#include <memory>

#include "../formats/scratch.hpp"
#include "../watchdog.hpp"
#include "like_ddp.hpp"
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

TEST_CASE("a torch module predicts, evaluates and gives errors like plain models", "[torch]") {
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
        "not take; for Double use torch_model<double> and precision::fp64");
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

TEST_CASE("a loss scale in a trainer does not change the bits of a torch module's training", "[torch]") {
  auto const whole = trained(2), scaled = trained(2, scaled_fp32{});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(scaled[rank].values.equal(whole[rank].values));
    CHECK(scaled[rank].last == whole[rank].last);
  }
}

TEST_CASE("a torch module is trained in float16, with the loss scale in checkpoints", "[torch]") {
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

namespace {

/// What DDP is defined to do, in the plainest form: the start and, before each forward, the buffers are rank 0's; after
/// backward every gradient is the mean of all ranks'. In one piece a tensor, without buckets and hooks.
template <class Module>
class plain_ddp {
 public:
  struct meeting {
    std::barrier<> all{2};
    std::array<Tensor, 2> tensors{};
  };
  plain_ddp(std::shared_ptr<Module> module, std::shared_ptr<meeting> place, int rank)
      : module_(std::move(module)), place_(std::move(place)), rank_(rank) {
    for (auto const& each : like_ddp::state_of(*module_)) from_rank_0(each.detach());
  }
  Tensor forward(Tensor const& x) {
    for (auto const& each : module_->buffers()) from_rank_0(each);
    return module_->forward(x);
  }
  void finish() {
    for (auto const& each : module_->parameters()) {
      // Not a half of the sum but the sum of halves: so Reducer does it.
      auto const half = each.grad() / 2;
      together(half, [&](auto const& both) { each.mutable_grad().copy_(both[0] + both[1]); });
    }
  }
  plain_ddp* operator->() { return this; }

 private:
  void from_rank_0(Tensor const& each) {
    together(each, [&](auto const& both) {
      if (rank_ != 0) each.copy_(both[0]);
    });
  }
  template <class Act>
  void together(Tensor const& mine, Act const& act) {
    torch::NoGradGuard const guard;
    place_->tensors[static_cast<std::size_t>(rank_)] = mine;
    place_->all.arrive_and_wait();
    act(place_->tensors);
    place_->all.arrive_and_wait();
  }
  std::shared_ptr<Module> module_;
  std::shared_ptr<meeting> place_;
  int rank_;
};

/// After 50 steps parameters of both ranks and buffers of rank 0, in one row. (Rank 1 gets those after a step here, in
/// DDP before the next.)
template <class Module, class Wrap>
Tensor trained_by(Tensor const& inputs, Tensor const& targets, Wrap const& wrap) {
  auto const ranks = on_ranks<Tensor>(2, [&](auto& world) {
    auto const own = std::make_shared<Module>();
    // Ranks begin with different numbers: both ways send those of rank 0.
    fill(*own, 20 + static_cast<std::uint64_t>(world.rank()));
    auto ddp = wrap(own, world);
    like_ddp::train(*own, ddp, inputs, targets, world.rank());
    std::vector<Tensor> rows;
    for (auto const& each : world.rank() == 0 ? like_ddp::state_of(*own) : own->parameters())
      rows.push_back(each.detach().flatten());
    return torch::cat(rows);
  });
  return torch::cat(ranks);
}

template <class Module>
void ends_where_plain_ddp_does(Tensor const& inputs, Tensor const& targets) {
  watchdog const guard("two ranks of a plain DDP");
  auto const place = std::make_shared<typename plain_ddp<Module>::meeting>();
  auto const theirs = trained_by<Module>(
      inputs, targets, [&](auto const& own, auto& world) { return plain_ddp<Module>(own, place, world.rank()); });
  auto const ours = trained_by<Module>(inputs, targets,
                                       [](auto const& own, auto& world) { return interop::data_parallel(own, world); });
  Module begin;
  fill(begin, 20);
  auto const start = values_of(begin);
  CHECK(distance(ours, theirs) <= 1e-6);
  CHECK(distance(ours.slice(0, 0, start.numel()), start) > 1e-2);  // otherwise equality would say little
  CHECK(ours.isfinite().all().equal(torch::ones({}, at::kBool)));
}

}  // namespace

TEST_CASE("data_parallel agrees with the definition of DDP within 1e-6, with the same LibTorch", "[torch]") {
  auto const labels = (numbers({50, 16}, 31).abs() * 4).to(at::kLong).clamp(0, 9);
  // Pictures that show their label, beside noise.
  auto const pictures = numbers({50, 16, 1, 28, 28}, 30) + labels.reshape({50, 16, 1, 1, 1}) / 4;
  ends_where_plain_ddp_does<like_ddp::cnn>(pictures, labels);
  auto const tokens = (numbers({50, 8, 12}, 32).abs() * 16).to(at::kLong).clamp(0, 31);
  ends_where_plain_ddp_does<like_ddp::transformer>(tokens, (3 * tokens + 1).remainder(32));
}

namespace {

/// 16 samples of four numbers and a class, of which seven are left out, five of them in the second half.
data::in_memory<float, std::int32_t> some_classes() {
  auto const all = numbers({16, 4}, 5);
  std::vector<float> x(all.data_ptr<float>(), all.data_ptr<float>() + all.numel());
  return {x, {0, -100, 1, -100, 1, 2, 0, 0, 1, 1, 2, -100, -100, -100, -100, -100}, {4}};
}

struct counted_run {
  Tensor values{};
  double first = 0, evaluated = 0;
};

template <class Make, class... Policies>
counted_run counted_training(int ranks, std::int64_t micro_batches, Make const& make, Policies const&... policies) {
  auto const data = some_classes();
  return on_ranks<counted_run>(ranks, [&](auto& world) {
    torch::nn::Sequential net(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 3));
    fill(*net, 8);
    auto trainer = make_trainer(make(net), optim::sgd{.learning_rate = 0.5, .momentum = 0}, world, policies...);
    auto const report = trainer.fit(data, {.steps = 3, .batch = 16, .micro_batches = micro_batches});
    counted_run found{{}, report.first_loss, trainer.evaluate(data, 5)};
    std::vector<double> values;
    trainer.for_each_parameter([&](auto const&, auto const&, auto all) {
      for (auto const each : all) values.push_back(static_cast<double>(each));
    });
    found.values = torch::tensor(values, at::kDouble);
    return found;
  })[0];
}

}  // namespace

TEST_CASE("a torch loss with ignored targets trains equally however samples are distributed", "[torch]") {
  // As one process does it with the whole batch.
  auto const alone = [](auto loss) {
    torch::nn::Sequential net(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 3));
    fill(*net, 8);
    auto const data = some_classes();
    std::vector<std::int64_t> ids(16);
    for (std::size_t i = 0; i < 16; ++i) ids[i] = static_cast<std::int64_t>(i);
    auto const x = torch::empty({16, 4});
    auto y = torch::empty({16}, at::kInt);
    data.read(ids, x.template data_ptr<float>(), y.template data_ptr<std::int32_t>());
    y = y.to(at::kLong);
    torch::optim::SGD sgd(net->parameters(), 0.5);
    counted_run out;
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      auto const found = loss(net->forward(x), y);
      if (step == 0) out.first = found.template item<double>();
      found.backward();
      sgd.step();
    }
    out.evaluated = loss(net->forward(x), y).template item<double>();
    out.values = values_of(*net);
    return out;
  };
  auto const check = [](counted_run const& found, counted_run const& expected) {
    CHECK(distance(std::get<0>(found.values.sort()), std::get<0>(expected.values.sort())) < 1e-6);
    CHECK(found.first == Approx(expected.first).epsilon(1e-6));
    CHECK(found.evaluated == Approx(expected.evaluated).epsilon(1e-6));
  };
  auto const all = [&](auto const& loss, auto const& torchs, auto const&... policies) {
    auto const expected = alone(torchs);
    for (int const ranks : {1, 2}) {
      for (std::int64_t const micro : {1, 4, 8}) {
        INFO(ranks << " ranks, " << micro << " micro-batches");
        check(counted_training(
                  ranks, micro, [&](auto const& net) { return interop::torch_model(net, loss); }, policies...),
              expected);
        check(counted_training(
                  ranks, micro, [&](auto const& net) { return interop::torch_sequential(net, loss); }, policies...),
              expected);
      }
    }
  };
  torch::nn::CrossEntropyLoss const plain;
  torch::nn::CrossEntropyLoss const weighted(
      torch::nn::CrossEntropyLossOptions().weight(torch::tensor({0.3F, 1.0F, 2.5F})).label_smoothing(0.1));
  auto const own = [](Tensor const& outputs, Tensor const& column) -> interop::loss_and_count {
    auto const targets = column.flatten();
    auto const kept = (targets != -100).nonzero().flatten();
    auto const sum =
        torch::nn::functional::cross_entropy(outputs.index_select(0, kept), targets.index_select(0, kept).to(at::kLong),
                                             torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
    return {sum, static_cast<double>(kept.numel())};
  };
  all(plain, plain);
  all(weighted, weighted, parallel::zero<1>{});
  all(own, plain, parallel::zero<2>{});
}
