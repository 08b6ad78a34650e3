// Training steps of a GPT (model_steps.hpp describes the method and the options).
//
// Shape a: 6 layers x 384 channels, 6 heads, context 256, vocabulary 256, batch 8 per rank. Shape b: GPT-2 124M, 12 x
// 768, 12 heads, vocabulary 50257, context 1024, batch 1 per rank.
#include "model_steps.hpp"

namespace {

steps::setting<trireme::nn::gpt> of(trireme::nn::gpt const& model, std::int64_t batch) {
  auto const c = static_cast<double>(model.channels);
  return {model, batch, 12 * static_cast<double>(model.layers) * c * c + static_cast<double>(model.vocabulary) * c,
          model.context / 2};
}

}  // namespace

int main(int argc, char** argv) {
  return steps::run(argc, argv, "gpt",
                    of({.vocabulary = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384}, 8),
                    of({.vocabulary = 50257, .context = 1024, .layers = 12, .heads = 12, .channels = 768}, 1));
}
