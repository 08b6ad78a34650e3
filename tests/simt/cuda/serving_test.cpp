// Requests are served from CUDA memory as from host memory: many sequences in one pass, with keys and values in pages.
#include <cstdint>
#include <vector>

#include "training.hpp"
#include "trireme/nn/deepseek.hpp"
#include "trireme/serve/decoder.hpp"
#include "trireme/serve/engine.hpp"

using namespace on_device;

namespace {

/// The tokens of several requests that are served beside each other.
template <class Space, class Model>
std::vector<std::vector<std::int32_t>> served(Model const& model) {
  watchdog const guard("serving from CUDA memory", std::chrono::seconds(280));
  std::vector<std::vector<std::int32_t>> answers(3);
  launch_in<Space>(1, std::chrono::seconds(120), [&](auto& world) {
    auto trainer =
        make_trainer(model, optim::groups{optim::sgd{}, {{.names = "*", .frozen = true}}}, world, precision::fp32{});
    trainer.initialise(5);
    auto decoder = serve::decoder_of(trainer, model);
    serve::engine engine(decoder, {.positions = 64, .most_running = 2, .tokens_in_pass = 8});
    for (std::size_t i = 0; i < answers.size(); ++i) {
      std::vector<std::int32_t> prompt;
      for (std::int32_t t = 0; t < 5 + 6 * static_cast<std::int32_t>(i); ++t)
        prompt.push_back((7 * t + 3 * static_cast<std::int32_t>(i)) % 29);
      engine.submit({.prompt = prompt, .max_tokens = 4, .temperature = 0}, [&to = answers[i]](serve::event const& one) {
        if (one.token >= 0 && !one.in_prompt) to.push_back(one.token);
      });
    }
    engine.drain();
    CHECK(engine.now().pages_used == 0);
  });
  for (auto const& each : answers) CHECK(each.size() == 4);
  return answers;
}

}  // namespace

TEST_CASE("a LLaMA with grouped keys and a window is served from CUDA memory", "[serving]") {
  nn::llama const model{
      .vocabulary = 29, .context = 32, .layers = 2, .heads = 4, .key_heads = 2, .channels = 16, .window = 11};
  CHECK(served<cuda>(model) == served<host>(model));
}

TEST_CASE("a GPT with learned positions and a DeepSeek are served from CUDA memory", "[serving]") {
  nn::gpt const learned{.vocabulary = 29, .context = 32, .layers = 1, .heads = 2, .channels = 16};
  CHECK(served<cuda>(learned) == served<host>(learned));
  nn::deepseek const latent{.vocabulary = 29,
                            .context = 32,
                            .layers = 2,
                            .dense = 1,
                            .channels = 16,
                            .heads = 2,
                            .rank = 8,
                            .plain = 8,
                            .rotary_width = 4,
                            .values = 8,
                            .hidden = 32,
                            .experts = 4,
                            .top_k = 2,
                            .expert_hidden = 16};
  CHECK(served<cuda>(latent) == served<host>(latent));
}
