// Training steps of a BERT that predicts one word of seven (model_steps.hpp describes the method and the options).
//
// Shape a: 6 layers x 384 channels, 6 heads, context 256, vocabulary 256, batch 8 per rank. Shape b: BERT base, 12 x
// 768, 12 heads, vocabulary 30522, context 512, batch 2 per rank. Samples have one length: there is no padding.
#include "model_steps.hpp"
#include "trireme/nn/bert.hpp"

namespace {

steps::setting<trireme::nn::bert> of(trireme::nn::bert const& model, std::int64_t batch) {
  auto const c = static_cast<double>(model.channels);
  return {model, batch,
          (12 * static_cast<double>(model.layers) + 1) * c * c + static_cast<double>(model.vocabulary) * c,
          model.context, 1.0 / 7};
}

}  // namespace

int main(int argc, char** argv) {
  return steps::run(argc, argv, "bert",
                    of({.vocabulary = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384, .padding = -1}, 8),
                    of({.vocabulary = 30522, .context = 512, .padding = -1}, 2));
}
