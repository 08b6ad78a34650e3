// A GPT trains in CUDA memory as in host memory, under each strategy: in the simulator of a GPU's threads, and, with
// scripts/test-gpu, on a GPU.
#include "training.hpp"

using namespace on_device;

namespace {

nn::gpt const model{.vocabulary = 37, .context = 12, .layers = 2, .heads = 2, .channels = 32};
ordered_words const words{model.context, model.vocabulary};
optim::sgd const moving{.learning_rate = 0.1, .momentum = 0.9, .clip = 1.0};

struct degrees {
  int data = 1, stages = 1, context = 1, tensor = 1;
};
template <class Data>
auto mesh_of(Data data, degrees const& of) {
  data.ways = of.data;
  return parallel::mesh{data, parallel::any_pipeline{.schedule = "1f1b", .stages = of.stages},
                        parallel::context{.ways = of.context}, parallel::tensor{.ways = of.tensor}};
}
template <class Data, class Precision = precision::fp32>
void compare(std::string const& what, Data data, degrees const& of, double tolerance = 1e-5,
             Precision const& precision = {}, nn::gpt const& trained = model) {
  auto const ranks = of.data * of.stages * of.context * of.tensor;
  expect_the_hosts_training(what, ranks, trained, moving, mesh_of(data, of), precision, words, tolerance,
                            {.steps = 4, .batch = 4, .micro_batches = of.stages > 1 ? 2 : 0});
}

}  // namespace

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
TEST_CASE("a GPT in CUDA memory: bfloat16, and AdamW", "[gpt]") {
  compare("bf16", parallel::data{}, {}, 2e-2, precision::bf16{});
  expect_the_hosts_training("AdamW", 2, model, optim::adamw{.learning_rate = 1e-3, .epsilon = 1e-4, .clip = 1.0},
                            parallel::data{}, precision::fp32{}, words, 1e-4);
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
  compare("experts", parallel::data{}, {}, 1e-5, precision::fp32{}, mixture);
  compare("experts and data", parallel::data{}, {.data = 2}, 1e-5, precision::fp32{}, mixture);
}
