// Other models than GPT train in CUDA memory as in host memory (training.hpp).
#include "training.hpp"
#include "trireme/nn/bert.hpp"
#include "trireme/nn/deepseek.hpp"

using namespace on_device;

namespace {

optim::sgd const moving{.learning_rate = 0.1, .momentum = 0.9, .clip = 1.0};

template <class Model>
void compare(std::string const& what, Model const& model, ordered_words const& words) {
  expect_the_hosts_training(what, 1, model, moving, parallel::data{}, precision::fp32{}, words, 1e-5);
  expect_the_hosts_training(what, 2, model, moving, parallel::data{}, precision::fp32{}, words, 1e-5);
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
  compare("llama with a window and norms of heads", windowed, {model.context, model.vocabulary});
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
