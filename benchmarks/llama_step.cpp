// Training steps of a LLaMA (model_steps.hpp describes the method and the options).
//
// Shape a: 6 layers x 384 channels, 6 heads, 2 key heads, mlp of 1024, context 256, vocabulary 256, batch 8 per rank.
// Shape b: SmolLM2 135M, 30 x 576, 9 heads, 3 key heads, mlp of 1536, vocabulary 49152, tied, context 1024, batch 1.
#include "model_steps.hpp"

namespace {

steps::setting<trireme::nn::llama> of(trireme::nn::llama const& model, std::int64_t batch) {
  auto const c = static_cast<double>(model.channels), head = c / static_cast<double>(model.heads);
  auto const block =
      2 * c * c + 2 * c * head * static_cast<double>(model.key_heads) + 3 * c * static_cast<double>(model.hidden);
  return {model, batch, static_cast<double>(model.layers) * block + static_cast<double>(model.vocabulary) * c,
          model.context / 2};
}

}  // namespace

int main(int argc, char** argv) {
  return steps::run(argc, argv, "llama",
                    of({.vocabulary = 256,
                        .context = 256,
                        .layers = 6,
                        .heads = 6,
                        .key_heads = 2,
                        .channels = 384,
                        .hidden = 1024,
                        .tied = true},
                       8),
                    of({.vocabulary = 49152,
                        .context = 1024,
                        .layers = 30,
                        .heads = 9,
                        .key_heads = 3,
                        .channels = 576,
                        .hidden = 1536,
                        .tied = true},
                       1));
}
