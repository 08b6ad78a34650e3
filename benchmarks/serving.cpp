// serving [bf16] [DIRECTORY]: tokens a second of serve::engine with 1, 4 and 16 streams, one JSON object a row: answers
// of 64 tokens to prompts of 128. The model is a LLaMA of 32 million random parameters, or that in DIRECTORY.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "random_tokens.hpp"

#include "trireme/nn/pretrained.hpp"
#include "trireme/serve/engine.hpp"
#include "trireme/train/pretrained.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

template <class Precision>
void measure(std::string const& directory, Precision precision, char const* numbers) {
  nn::llama model{.vocabulary = 16384,
                  .context = 1024,
                  .layers = 8,
                  .heads = 8,
                  .key_heads = 4,
                  .channels = 512,
                  .hidden = 1408,
                  .tied = true};
  if (!directory.empty()) model = nn::read_description<nn::llama>(directory);
  comm::self_world world;
  auto trainer = make_trainer(model, optim::groups{optim::sgd{}, {{.names = "*", .frozen = true}}}, world, precision);
  if (!directory.empty()) load_pretrained(trainer, directory);
  auto decoder = serve::decoder_of(trainer, model);
  for (int const streams : {1, 4, 16}) {
    serve::engine engine(decoder, {.positions = 4096});
    constexpr std::int64_t prompt = 128, answer = 64;
    using clock = std::chrono::steady_clock;
    auto const seconds = [](clock::duration time) { return std::chrono::duration<double>(time).count(); };
    int answers = 0;  // that have begun
    for (int stream = 0; stream < streams; ++stream) {
      serve::request one{.max_tokens = answer, .temperature = 0};
      for (std::int64_t t = 0; t < prompt; ++t) {
        auto const at = static_cast<std::uint64_t>(stream * 1000 + t);
        one.prompt.push_back(static_cast<std::int32_t>(mix(at) % static_cast<std::uint64_t>(model.vocabulary)));
      }
      engine.submit(one, [&answers, first = true](serve::event const&) mutable {
        if (std::exchange(first, false)) ++answers;
      });
    }
    auto const begin = clock::now();
    while (answers < streams) engine.pass();
    auto const prompts = clock::now();
    auto const first = engine.now().tokens_generated;
    while (engine.pass()) {
    }
    auto const end = clock::now();
    std::printf("{\"numbers\": \"%s\", \"streams\": %d, \"prompt_tokens_a_second\": %.1f, \"tokens_a_second\": %.1f}\n",
                numbers, streams, static_cast<double>(streams * prompt) / seconds(prompts - begin),
                static_cast<double>(engine.now().tokens_generated - first) / seconds(end - prompts));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    int at = 1;
    bool const bf16 = argc > at && std::strcmp(argv[at], "bf16") == 0;
    if (bf16) ++at;
    std::string const directory = argc > at ? argv[at] : "";
    if (bf16)
      measure(directory, precision::bf16{}, "bf16");
    else
      measure(directory, precision::fp32{}, "fp32");
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "serving: %s\n", problem.what());
    return 1;
  }
}
