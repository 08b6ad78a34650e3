// A GPT trains in CUDA memory as in host memory, under each strategy: in the simulator of a GPU's threads, and, with
// scripts/test-gpu, on a GPU.
#include <stdexcept>

#include "../../support/sentence.hpp"
#include "tensors.hpp"
#include "training.hpp"

using namespace on_device;

namespace {

nn::gpt const model{.vocabulary = 37, .context = 12, .layers = 2, .heads = 2, .channels = 32};
ordered_words const words{model.context, model.vocabulary};
optim::sgd const moving{.learning_rate = 0.1, .momentum = 0.9, .clip = 1.0};

struct degrees {
  int data = 1, stages = 1, context = 1, tensor = 1;
  [[nodiscard]] int ranks() const { return data * stages * context * tensor; }
};
template <class Data>
auto mesh_of(Data data, degrees const& of) {
  data.ways = of.data;
  return parallel::mesh{data, parallel::any_pipeline{.schedule = "1f1b", .stages = of.stages},
                        parallel::context{.ways = of.context}, parallel::tensor{.ways = of.tensor}};
}
template <class Data>
void compare(std::string const& what, Data data, degrees const& of, nn::gpt const& trained = model) {
  expect_the_hosts_training(what, of.ranks(), trained, moving, mesh_of(data, of), precision::fp32{}, words, 1e-5,
                            {.steps = 4, .batch = 4, .micro_batches = of.stages > 1 ? 2 : 0});
}

/// Four samples; one of their targets is outside of the vocabulary.
struct wrong_target : ordered_words {
  [[nodiscard]] std::int64_t size() const { return 4; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    ordered_words::read(ids, inputs, targets);
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (ids[i] == 2) static_cast<std::int32_t*>(targets)[static_cast<std::int64_t>(i) * context + 1] = 99;
  }
};
/// Every rank is told of the target, and goes on with other samples as if nothing had been.
void go_on_after_a_wrong_target(degrees const& of) {
  auto const mesh = mesh_of(parallel::data{}, of);
  std::vector<std::string> said(static_cast<std::size_t>(of.ranks()));
  launch_in<cuda>(of.ranks(), std::chrono::seconds(60), [&](auto& world) {
    auto trainer = make_trainer(model, moving, world, mesh), other = make_trainer(model, moving, world, mesh);
    try {
      trainer.fit(wrong_target{words}, {.steps = 1, .batch = 4});
    } catch (error const& problem) {
      said[static_cast<std::size_t>(world.rank())] = problem.what();
    }
    trainer.fit(words, {.steps = 2, .batch = 4});
    other.fit(words, {.steps = 2, .batch = 4});
    auto const hash = trainer.state_hash();
    if (hash != other.state_hash()) throw std::runtime_error("a wrong target has left something behind");
  });
  for (auto const& each : said) CHECK(contains(each, "target 99 is outside of 37 classes"));
}

}  // namespace

TEST_CASE("a GPT in CUDA memory: a wrong target is an error on every rank, and changes nothing", "[gpt]") {
  go_on_after_a_wrong_target({});
  go_on_after_a_wrong_target({.data = 2});
  go_on_after_a_wrong_target({.tensor = 2});
}
TEST_CASE("a GPT in CUDA memory: data parallel", "[gpt]") {
  compare("one rank", parallel::data{}, {});
  compare("data", parallel::data{}, {.data = 2});
  compare("data", parallel::data{}, {.data = 4});
}
TEST_CASE("a GPT in CUDA memory: tensor, pipeline and context", "[gpt]") {
  compare("tensor", parallel::data{}, {.tensor = 2});
  compare("pipeline", parallel::data{}, {.stages = 2});
  compare("context", parallel::data{}, {.context = 2});
  compare("data and tensor", parallel::data{}, {.data = 2, .tensor = 2});
}
TEST_CASE("a GPT in CUDA memory: zero", "[gpt]") {
  compare("zero<1>", parallel::zero<1>{}, {.data = 2});
  compare("zero<1> and pipeline", parallel::zero<1>{}, {.data = 2, .stages = 2});
  expect_the_hosts_training("zero<2>", 3, model, moving, parallel::zero<2>{}, precision::fp32{}, words, 1e-5);
  expect_the_hosts_training("zero<3>", 2, model, moving, parallel::zero<3>{}, precision::fp32{}, words, 1e-5);
}
TEST_CASE("a GPT in CUDA memory: bfloat16, float16, and AdamW", "[gpt]") {
  settings const how{.steps = 4};
  expect_the_hosts_training("bf16", 1, model, moving, parallel::data{}, precision::bf16{}, words, 2e-2, how);
  expect_the_hosts_training("fp16", 1, model, moving, parallel::data{}, precision::fp16{.first_scale = 1024}, words,
                            3e-3, how);
  expect_the_hosts_training("AdamW", 2, model, optim::adamw{.learning_rate = 1e-3, .epsilon = 1e-4, .clip = 1.0},
                            parallel::data{}, precision::fp32{}, words, 1e-4);
}
TEST_CASE("a GPT in CUDA memory: products in TF32 if the precision names it, and there only", "[gpt]") {
  precision::fp32 const named{.tf32_products = true};
  CHECK(to_string(named) == "precision::fp32{.tf32_products = true}");
  CHECK(to_string(precision::fp32{}) == "precision::fp32{}");
  CHECK_FALSE(named == precision::fp32{});
  for (auto const& of : {degrees{}, degrees{.data = 2}, degrees{.stages = 2}, degrees{.tensor = 2}}) {
    auto const mesh = mesh_of(parallel::data{}, of);
    settings const how{.micro_batches = of.stages > 1 ? 2 : 0};
    auto const strict = train<cuda>(of.ranks(), model, moving, mesh, precision::fp32{}, words, how);
    auto const found = train<cuda>(of.ranks(), model, moving, mesh, named, words, how);
    CHECK(found.losses.back() < found.losses.front());
    CHECK(distance(found, strict) <= 1e-2);
    if (!large) CHECK(found.weights != strict.weights);  // a GPU's library may leave small products as they are
    CHECK_FALSE(ops::tf32_products::allowed());
  }
  launch(comm::threads{.ranks = 1}, [&](auto& world) {
    CHECK(sentence_of<config_error>(
              [&] { (void)make_trainer(model, moving, world, mesh_of(parallel::data{}, {}), named); }) ==
          "trireme::trainer: precision::fp32{.tf32_products = true} is for trainers in CUDA memory, and this one is in "
          "another; leave .tf32_products out");
  });
}
TEST_CASE("a GPT in CUDA memory: a reproducible training has the same weights on 1, 2 and 4 ranks", "[gpt]") {
  auto dropping = model;
  dropping.dropout = 0.2;
  parallel::zero<2> const strategy{.reproducible = true};
  settings const how{.steps = 3, .batch = 4, .micro_batches = 4};
  auto const alone = train<cuda>(1, dropping, moving, strategy, precision::fp32{}, words, how);
  for (int const ranks : {2, 4}) {
    INFO(ranks << " ranks");
    CHECK(train<cuda>(ranks, dropping, moving, strategy, precision::fp32{}, words, how).weights == alone.weights);
  }
  CHECK(distance(alone, train<host>(1, dropping, moving, strategy, precision::fp32{}, words, how)) <= 1e-5);
}
TEST_CASE("a GPT in CUDA memory: dropout drops the same numbers as in host memory", "[gpt]") {
  auto dropping = model;
  dropping.dropout = 0.2;
  expect_the_hosts_training("dropout", 2, dropping, moving, parallel::zero<2>{}, precision::fp32{}, words, 1e-5);
}
TEST_CASE("a GPT in CUDA memory: experts", "[gpt]") {
  auto mixture = model;
  mixture.channels = 16;
  mixture.experts = 4;
  mixture.balance = 0.01;
  compare("experts", parallel::data{}, {}, mixture);
  compare("experts and data", parallel::data{}, {.data = 2}, mixture);
}
