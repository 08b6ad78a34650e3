// Other models than GPT train in CUDA memory as in host memory (training.hpp).
#include "training.hpp"
#include "trireme/nn/bert.hpp"
#include "trireme/nn/deepseek.hpp"

using namespace on_device;

namespace {

optim::sgd const moving{.learning_rate = 0.1, .momentum = 0.9, .clip = 1.0};

/// A mesh of one type, so that trainers are compiled once.
auto mesh_of(int data, int stages, int tensor) {
  return parallel::mesh{parallel::zero<1>{.ways = data}, parallel::any_pipeline{.schedule = "1f1b", .stages = stages},
                        parallel::tensor{.ways = tensor}};
}
template <class Model>
void compare(std::string const& what, Model const& model, ordered_words const& words) {
  auto const under = [&](std::string const& strategy, int ranks, auto const& mesh, std::int64_t micro_batches = 0) {
    expect_the_hosts_training(what + strategy, ranks, model, moving, mesh, precision::fp32{}, words, 1e-5,
                              {.micro_batches = micro_batches});
  };
  under("", 1, mesh_of(1, 1, 1));
  under(", zero<1>", 2, mesh_of(2, 1, 1));
  under(", pipeline", 2, mesh_of(1, 2, 1), 2);
  under(", tensor", 2, mesh_of(1, 1, 2));
}

}  // namespace

TEST_CASE("a LLaMA in CUDA memory", "[models]") {
  nn::llama const model{.vocabulary = 37, .context = 12, .layers = 2, .heads = 4, .key_heads = 2, .channels = 32};
  compare("llama", model, {model.context, model.vocabulary});
  auto windowed = model;
  windowed.window = 5;
  windowed.head_norms = true;
  windowed.tied = true;
  windowed.checkpointed = true;
  expect_the_hosts_training("llama with a window and norms of heads", 2, windowed, moving, mesh_of(2, 1, 1),
                            precision::fp32{}, ordered_words{model.context, model.vocabulary}, 1e-5);
}
TEST_CASE("a BERT in CUDA memory", "[models]") {
  nn::bert const model{.vocabulary = 37,
                       .context = 12,
                       .layers = 2,
                       .heads = 2,
                       .channels = 32,
                       .hidden = 64,
                       .padding = 0,
                       .separator = 3};
  compare("bert", model, {model.context, model.vocabulary});
  expect_the_hosts_training("bert in bf16", 1, model, moving, parallel::data{}, precision::bf16{},
                            ordered_words{model.context, model.vocabulary}, 2e-2);
}
TEST_CASE("a DeepSeek in CUDA memory", "[models]") {
  nn::deepseek model{.vocabulary = 41,
                     .context = 12,
                     .layers = 2,
                     .dense = 1,
                     .channels = 24,
                     .heads = 3,
                     .query_rank = 10,
                     .rank = 8,
                     .plain = 6,
                     .rotary_width = 4,
                     .values = 5,
                     .hidden = 20,
                     .experts = 8,
                     .top_k = 3,
                     .shared = 1,
                     .expert_hidden = 10,
                     .groups = 4,
                     .chosen_groups = 2,
                     .speed = 0.01};
  ordered_words const words{model.context, model.vocabulary};
  expect_the_hosts_training("deepseek", 1, model, moving, parallel::data{}, precision::fp32{}, words, 1e-5);
  model.ahead = 1;
  expect_the_hosts_training("deepseek with a word ahead", 1, model, moving, parallel::data{}, precision::fp32{}, words,
                            1e-5);
}
