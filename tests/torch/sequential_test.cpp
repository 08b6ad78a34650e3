// test-timeout: 240
#include "trireme/interop/torch.hpp"

#include <stdexcept>

#include "../formats/scratch.hpp"
#include "torch_cases.hpp"
#include "trireme/parallel/schedules/two_chunks.hpp"

// torch::nn::Sequential as a model of units: its parameters gathered for each child, its children dealt out to stages.

using namespace torch_cases;
using torch::nn::Linear;
using torch::nn::Sequential;

namespace {

data::in_memory<float, float> samples_of_a_plane() {
  auto const x = numbers({64, 4}, 9);
  auto const y = (x * torch::arange(-1, 3)).sum(1);
  return {{x.data_ptr<float>(), x.data_ptr<float>() + x.numel()},
          {y.data_ptr<float>(), y.data_ptr<float>() + y.numel()},
          {.inputs = 4, .targets = 1}};
}

/// Children without parameters first, between and last; a frozen one; a tied one at both ends of the rest.
Sequential some_children(bool tied = true) {
  Linear shared(6, 6), last = tied ? shared : Linear(6, 6);
  Sequential net(torch::nn::Identity(), Linear(4, 6), torch::nn::Tanh(), shared, torch::nn::Tanh(), Linear(6, 6),
                 torch::nn::Tanh(), torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})), Linear(6, 6),
                 torch::nn::Tanh(), last, torch::nn::Tanh(), Linear(6, 1), torch::nn::Identity());
  fill(*net, 3);
  for (auto& each : net[5]->parameters()) each.requires_grad_(false);
  return net;
}

/// Batch normalisations that are a unit, part of one, and the last part of one. (Layers before them have no bias: its
/// gradient is zero but for rounding, which Adam would make large.)
Sequential some_norms() {
  using torch::nn::BatchNorm1d;
  using options = torch::nn::BatchNormOptions;
  auto const linear = [](int from, int to) { return Linear(torch::nn::LinearOptions(from, to).bias(false)); };
  Sequential net(linear(4, 6), BatchNorm1d(6), torch::nn::Tanh(), linear(6, 6), BatchNorm1d(options(6).affine(false)),
                 torch::nn::Tanh(), linear(6, 1), BatchNorm1d(options(1).affine(false).momentum(0.3)));
  fill(*net, 3);
  torch::NoGradGuard const guard;
  net[1]->parameters().front().add_(1);
  return net;
}
Sequential made_of(std::string const& net) { return net == "norms" ? some_norms() : some_children(net == "tied"); }
Tensor buffers_of(torch::nn::Module const& module) {
  std::vector<Tensor> rows{torch::zeros({1}, at::kDouble)};
  for (auto const& each : module.buffers()) rows.push_back(each.flatten().to(at::kDouble));
  return torch::cat(rows);
}

struct outcome {
  Tensor values{}, predicted{}, buffers{};
  std::vector<double> losses{}, norms{};
  std::vector<bool> skipped{};
  double evaluated = 0;
  std::uint64_t hash = 0;
};
struct run_of {
  int ranks = 1;
  std::int64_t micro_batches = 4;
  std::int64_t stop = -1;
  std::string save{}, load{};
  std::string net = "tied";
};
template <class... Policies>
std::vector<outcome> trained(run_of const& run, Policies const&... policies) {
  auto const data = samples_of_a_plane();
  return on_ranks<outcome>(run.ranks, [&](auto& world) {
    auto net = made_of(run.net);
    auto trainer = make_trainer(interop::torch_sequential(net, torch::nn::MSELoss()),
                                optim::adamw{.learning_rate = 2e-2}, world, policies...);
    outcome found;
    trainer.on_step([&](step_report const& done) {
      found.losses.push_back(done.loss), found.norms.push_back(done.norm), found.skipped.push_back(done.skipped);
    });
    if (!run.load.empty()) trainer.load(run.load);
    trainer.fit(data, {.steps = 40, .batch = 16, .micro_batches = run.micro_batches, .stop_after = run.stop});
    if (!run.save.empty()) trainer.save(run.save);
    auto const x = numbers({5, 4}, 2);
    auto const out = trainer.predict(interop::detail::view_of<float>(x));
    found.evaluated = trainer.evaluate(data);
    found.hash = trainer.state_hash();
    interop::take_values(trainer, net);
    net->eval();
    torch::NoGradGuard const guard;
    found.values = values_of(*net), found.buffers = buffers_of(*net), found.predicted = torch::empty({5, 1});
    std::copy_n(out.span().data(), 5, found.predicted.data_ptr<float>());
    if (out.extents() != shape{5, 1} || distance(found.predicted, net->forward(x)) > 0.05)
      throw std::runtime_error("the module has other values than the trainer");
    return found;
  });
}

}  // namespace

TEST_CASE("a sequence of units is trained as torch's own loop trains it", "[torch]") {
  auto const ours = trained({.micro_batches = 1});
  auto net = some_children();
  std::vector<Tensor> free;
  for (auto const& item : net->named_parameters())  // without a tied one's second name
    if (item.value().requires_grad() && item.key().substr(0, 2) != "10") free.push_back(item.value());
  torch::optim::AdamW optimizer(free, torch::optim::AdamWOptions(2e-2).weight_decay(optim::adamw{}.weight_decay));
  auto const data = samples_of_a_plane();
  trireme::data::loader batches(data, {.batch = 16, .micro_batches = 1, .seed = 0});
  for (std::size_t step = 0; step < 40; ++step) {
    auto const& batch = batches.next().micro_batches.front();
    optimizer.zero_grad();
    auto const loss = torch::mse_loss(net->forward(interop::detail::tensor_of(batch.inputs)),
                                      interop::detail::tensor_of(batch.targets));
    loss.backward();
    optimizer.step();
    CHECK(ours[0].losses[step] == Approx(loss.item<double>()).epsilon(1e-3));
  }
  CHECK(ours[0].losses.back() < 0.2 * ours[0].losses.front());
  CHECK(distance(ours[0].values, values_of(*net)) < 1e-3);
}

TEST_CASE("zero<3> trains a sequence to the bits of data", "[torch]") {
  auto const serial = trained({});
  for (int const ranks : {2, 4}) {
    run_of const run{.ranks = ranks, .micro_batches = ranks, .net = "untied"};
    auto const data = trained(run), sharded = trained(run, parallel::zero<3>{}),
               small = trained(run, parallel::zero<3>{.bucket_bytes = 64});
    for (auto const& each : sharded) CHECK(each.hash == data[0].hash);
    CHECK(small[0].hash == data[0].hash);
    CHECK(sharded[0].values.equal(data[0].values));
    CHECK(sharded[0].predicted.equal(data[0].predicted));
    CHECK(sharded[0].evaluated == data[0].evaluated);
    CHECK(data[0].evaluated < 0.3 * data[0].losses[0]);
    auto const more = trained({.ranks = ranks, .micro_batches = 8}, parallel::zero<3>{});  // sends every micro-batch
    CHECK(distance(more[0].values, serial[0].values) < 1e-4);
  }
  // In one tree over the micro-batches the bits are those of one rank.
  CHECK(trained({.ranks = 4}, parallel::zero<3>{.reproducible = true})[0].hash ==
        trained({}, parallel::data{.reproducible = true})[0].hash);
}

TEST_CASE("a pipeline of a sequence's children trains as one rank does", "[torch]") {
  auto const serial = trained({});
  auto const in_order = [&](auto const& axis, int ranks) {
    auto const found = trained({ranks}, axis);
    for (auto const& each : found) {
      CHECK(each.hash == serial[0].hash);
      CHECK(each.values.equal(serial[0].values));
      CHECK(each.predicted.equal(serial[0].predicted));
      CHECK(each.losses == serial[0].losses);
      CHECK(each.evaluated == serial[0].evaluated);
    }
  };
  in_order(parallel::pipeline<schedule::one_f_one_b>{}, 2);
  in_order(parallel::pipeline<schedule::one_f_one_b>{.cuts = {1, 2, 4}}, 4);
  in_order(parallel::pipeline<schedule::interleaved>{.chunks = 2}, 2);
  auto const close = [&](auto const& axis) {
    auto const found = trained({2}, axis);
    for (auto const& each : found) CHECK(distance(each.values, serial[0].values) < 1e-4);
    for (std::size_t step = 0; step < 40; ++step)
      CHECK(found[1].losses[step] == Approx(serial[0].losses[step]).epsilon(1e-3));
  };
  close(parallel::pipeline<schedule::gpipe>{});
  close(parallel::pipeline<schedule::zb_h1>{});
  close(parallel::pipeline<schedule::zb_v>{});
  close(parallel::pipeline<schedule::dual_pipe>{});
  close(parallel::pipeline<schedule::dual_pipe_v>{});
  auto const both =
      trained({4}, parallel::mesh{parallel::zero<1>{}, parallel::pipeline<schedule::one_f_one_b>{.stages = 2}});
  CHECK(distance(both[3].values, serial[0].values) < 1e-4);
}

TEST_CASE("a sequence of units trains in bf16 and fp16, and resumes", "[torch]") {
  run_of const run{.ranks = 2, .micro_batches = 2, .net = "untied"};
  auto const whole = trained(run, parallel::zero<3>{}), narrow = trained(run, precision::bf16{}, parallel::zero<3>{});
  CHECK(narrow[0].hash == trained(run, precision::bf16{})[0].hash);
  CHECK(narrow[0].hash != whole[0].hash);
  CHECK(narrow[0].losses.back() < 0.3 * narrow[0].losses.front());
  scratch folder;
  auto first = run, rest = run;
  first.stop = 12, first.save = rest.load = folder.path();
  CHECK(trained(first, parallel::zero<3>{})[0].losses.size() == 12);
  CHECK(trained(rest, parallel::zero<3>{})[0].hash == whole[0].hash);
  precision::fp16 const searching{.first_scale = precision::fp16::largest_scale, .growth_steps = 6};
  if (!interop::detail::casts_to_float16) {
    CHECK(contains(sentence_of([&] { trained({1, 4, 1}, searching); }), "does not cast to Half on the CPU"));
    return;
  }
  auto const half = trained({2}, searching);
  CHECK(half[0].skipped[0]);
  CHECK(half[0].losses.back() < 0.5 * half[0].losses.front());
  auto const stages = trained({2}, searching, parallel::pipeline<schedule::one_f_one_b>{});
  CHECK(stages[1].skipped == stages[0].skipped);
  CHECK(stages[0].hash == trained({1}, searching)[0].hash);
}

TEST_CASE("running statistics of a sequence are updated, saved and used as in torch's own loop", "[torch]") {
  for (std::int64_t const micro_batches : {1, 4}) {
    auto const ours = trained({.micro_batches = micro_batches, .net = "norms"});
    auto net = some_norms();
    torch::optim::AdamW optimizer(net->parameters(),
                                  torch::optim::AdamWOptions(2e-2).weight_decay(optim::adamw{}.weight_decay));
    auto const data = samples_of_a_plane();
    trireme::data::loader batches(data, {.batch = 16, .micro_batches = micro_batches, .seed = 0});
    for (int step = 0; step < 40; ++step) {
      optimizer.zero_grad();
      for (auto const& batch : batches.next().micro_batches) {
        auto const loss = torch::mse_loss(net->forward(interop::detail::tensor_of(batch.inputs)),
                                          interop::detail::tensor_of(batch.targets));
        (loss / static_cast<double>(micro_batches)).backward();
      }
      optimizer.step();
    }
    CHECK(distance(ours[0].values, values_of(*net)) < 1e-3);
    CHECK(distance(ours[0].buffers, buffers_of(*net)) < 1e-3);
    CHECK(net[1]->buffers().back().item<std::int64_t>() == 40 * micro_batches);  // once a micro-batch
    net->eval();
    torch::NoGradGuard const guard;
    CHECK(distance(ours[0].predicted, net->forward(numbers({5, 4}, 2))) < 1e-3);
  }
}

TEST_CASE("several ranks have the same running statistics of a sequence as one rank", "[torch]") {
  run_of run{.net = "norms"};
  auto const serial = trained(run);
  auto const counted = [](outcome const& it) { return it.buffers[it.buffers.numel() - 1].item<double>(); };
  auto const same = [](std::vector<outcome> const& all, outcome const& as) {
    for (auto const& each : all) {
      CHECK(each.hash == as.hash);
      CHECK(each.values.equal(as.values));
      CHECK(each.buffers.equal(as.buffers));
      CHECK(each.predicted.equal(as.predicted));
      CHECK(each.evaluated == as.evaluated);
    }
  };
  scratch folder;
  run.ranks = 2, run.stop = 12, run.save = folder.path();
  trained(run, parallel::pipeline<schedule::one_f_one_b>{});
  run.stop = -1, run.save.clear(), run.load = folder.path();
  same(trained(run, parallel::pipeline<schedule::interleaved>{.chunks = 2}), serial[0]);
  run.load.clear();
  same(trained(run, parallel::pipeline<schedule::one_f_one_b>{}), serial[0]);
  auto const halves = trained(run, parallel::pipeline<schedule::zb_h1>{});
  for (auto const& each : halves) CHECK(distance(each.buffers, serial[0].buffers) < 1e-3);
  // The first rank that has a unit says what they are; with dual_pipe it has seen every other micro-batch.
  auto const twice = trained(run, parallel::pipeline<schedule::dual_pipe>{});
  for (auto const& each : twice) CHECK(each.buffers.equal(twice[0].buffers));
  CHECK(counted(twice[0]) == 80);
  run.micro_batches = 2;
  auto const data = trained(run);
  CHECK(counted(data[0]) == 40);
  same(trained(run, parallel::zero<3>{}), data[0]);
  run.ranks = 4, run.micro_batches = 4;
  auto const both =
      trained(run, parallel::mesh{parallel::zero<1>{}, parallel::pipeline<schedule::one_f_one_b>{.stages = 2}});
  for (auto const& each : both) CHECK(each.buffers.equal(both[0].buffers));
  CHECK(counted(both[3]) == 80);
}

TEST_CASE("a sequence's parameters have memory only while their unit runs", "[torch]") {
  comm::self_world world;
  auto net = some_children();
  auto const start = values_of(*net);
  auto const model = interop::torch_sequential(net, torch::nn::MSELoss());
  auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0}, world);
  CHECK(values_of(*net).equal(start));
  auto const x = numbers({3, 4}, 1), y = numbers({3, 1}, 2);
  trainer.step(interop::detail::view_of<float>(x), interop::detail::view_of<float>(y));
  CHECK(net->parameters().front().storage().data_ptr().get() == nullptr);
  CHECK(sentence_of([&] { static_cast<void>(make_trainer(model, optim::sgd{}, world)); }) ==
        "trireme::interop::torch_sequential: parameter \"1.weight\" has no memory, because a trainer has its values; "
        "take_values(trainer, module) gives them back");
  trainer.initialise(5);  // of the order of samples; the values stay
  interop::take_values(trainer, net);
  CHECK(values_of(*net).equal(start));
  Sequential const other(Linear(4, 5));
  CHECK(sentence_of([&] { interop::take_values(trainer, other); }) ==
        "trireme::interop::take_values: the module has no parameter \"1.weight\"(6, 4)");
}

TEST_CASE("modules that cannot be split into units are refused", "[torch]") {
  comm::self_world world;
  auto const sentence = [&](Sequential const& net, auto const& loss) {
    return sentence_of([&] {
      auto trainer = make_trainer(interop::torch_sequential(net, loss), optim::sgd{}, world);
      auto const x = numbers({3, 4}, 1);
      trainer.step(interop::detail::view_of<float>(x), interop::detail::view_of<float>(x));
    });
  };
  torch::nn::MSELoss const loss;
  torch::nn::BatchNorm1d const norm(torch::nn::BatchNormOptions(4).affine(false));
  CHECK(sentence(Sequential(Linear(4, 4), norm, Linear(4, 4), norm), loss) ==
        "trireme::interop::torch_sequential: buffer \"1.running_mean\" belongs to several units, which may lie on "
        "different ranks; give each layer its own, or use torch_model");
  CHECK(sentence(Sequential(torch::nn::Tanh()), loss) ==
        "trireme::interop::torch_sequential: the module has no parameters, so there is nothing to train");
  Sequential wide(Linear(4, 4));
  wide->to(at::kDouble);
  CHECK(sentence(wide, loss) ==
        "trireme::interop::torch_sequential: parameter \"0.weight\" has elements of Double, but this trainer keeps "
        "Float; convert it with to() before, and choose a precision to compute in another type");
  CHECK(sentence(Sequential(Linear(4, 4)), [](Tensor const& out, Tensor const& y) { return out - y; }) ==
        "trireme::interop::torch_sequential: the loss has 12 numbers; return one, the mean over the batch");
  auto const differs = on_ranks<std::string>(2, [&](auto& two) {
    Sequential net(Linear(4, 4));
    fill(*net, 3 + static_cast<std::uint64_t>(two.rank()));
    return sentence_of([&] {
      static_cast<void>(make_trainer(interop::torch_sequential(net, torch::nn::MSELoss()), optim::sgd{}, two));
    });
  });
  CHECK(contains(differs[0], "what the parameters begin with"));
  CHECK(contains(differs[1], "give the models of all ranks the same numbers"));
}

TEST_CASE("a sequence of double trains, and one that begins with an embedding", "[torch]") {
  comm::self_world world;
  Sequential wide(Linear(4, 3), torch::nn::Tanh(), Linear(3, 1));
  wide->to(at::kDouble);
  fill(*wide, 2);
  auto const before = values_of(*wide);
  auto const x = numbers({3, 4}, 1).to(at::kDouble), y = numbers({3, 1}, 2).to(at::kDouble);
  torch::mse_loss(wide->forward(x), y).backward();
  auto const slope = gradients_of(*wide);
  auto exact = make_trainer(interop::torch_sequential(wide, torch::nn::MSELoss()),
                            optim::sgd{.learning_rate = 1, .momentum = 0}, world, precision::fp64{});
  exact.step(interop::detail::view_of<double>(x), interop::detail::view_of<double>(y));
  interop::take_values(exact, wide);
  CHECK(distance(before - slope, values_of(*wide)) < 1e-14);

  auto const found = on_ranks<double>(2, [&](auto& two) {
    auto const tokens = torch::arange(16 * 6).remainder(5).to(at::kInt).reshape({16, 6});
    auto const next = (tokens + 1).remainder(5);
    Sequential net(torch::nn::Embedding(5, 8), Linear(8, 8), torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                   Linear(8, 5));
    fill(*net, 4);
    auto const loss = [](Tensor const& out, Tensor const& target) {
      return torch::cross_entropy_loss(out.flatten(0, 1), target.to(at::kLong).flatten());
    };
    auto trainer = make_trainer(interop::torch_sequential(net, loss), optim::adamw{.learning_rate = 5e-2}, two,
                                parallel::pipeline<schedule::zb_h1>{});
    double last = 0;
    for (int step = 0; step < 60; ++step) {
      last = trainer.step(interop::detail::view_of<std::int32_t>(tokens), interop::detail::view_of<std::int32_t>(next))
                 .loss;
    }
    return last;
  });
  CHECK(found[0] < 0.1);
  CHECK(found[1] == found[0]);
}
