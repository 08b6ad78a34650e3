// generate DIR [--prompt TEXT] [--tokens N] [--temperature T] [--top-k K] [--top-p P] [--seed S] [--tokenizer FILE]
//          [--weights int8|int4]
//
// Continues a text by N tokens (200) with the model in DIR (GPT-2, Llama, Qwen 2 and 3, Mistral, DeepSeek V3) in
// Hugging Face's format (config.json and model.safetensors, or an index of several files), as scripts/train writes it
// to RUN/model. Each token is sampled at temperature T (0.7; 0 takes the most probable), from the K most probable ones
// (0: all) and of these from the most probable that together reach the probability P (1). Keys and values of earlier
// tokens are cached, so that each is computed once. Tokens are those of FILE, a tokenizer.json or a .model of
// sentencepiece; without it those of tokenizer.json or tokenizer.model in DIR, and if there is none, bytes. The text
// ends early at an end token (eos_token_id) of generation_config.json or config.json. With --weights, products are
// those of integers (docs/serving.md).
//
// If DIR is -, it first trains a tiny model on one line of text and writes it to ./model.
//
// test: - --tokens 60 --temperature 0
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "../language_model.hpp"
#include "../vocabulary.hpp"

#include "trireme/nn/pretrained.hpp"
#include "trireme/ops/host/integer_products.hpp"
#include "trireme/train/generate.hpp"
#include "trireme/train/pretrained.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

struct options {
  std::string directory, prompt = "The ", tokenizer;
  std::int64_t tokens = 200;
  drawing how{.temperature = 0.7};
  std::optional<ops::weight_form> weights;
};

template <class Number>
Number number(std::string_view name, std::string_view given) {
  Number out{};
  auto const [end, problem] = std::from_chars(given.data(), given.data() + given.size(), out);
  if (problem != std::errc{} || end != given.data() + given.size())
    throw config_error(text(name, " is \"", given, "\"; it is not a number, or too large"));
  return out;
}

options parse(std::vector<std::string_view> const& given) {
  options out;
  for (std::size_t i = 0; i < given.size(); ++i) {
    auto const name = given[i];
    if (!name.starts_with("--")) {
      if (!out.directory.empty()) throw config_error(text("unexpected argument \"", name, "\": give one directory"));
      out.directory = name;
      continue;
    }
    if (++i == given.size()) throw config_error(text(name, " needs a value"));
    if (name == "--prompt")
      out.prompt = given[i];
    else if (name == "--tokenizer")
      out.tokenizer = given[i];
    else if (name == "--tokens")
      out.tokens = number<std::int64_t>(name, given[i]);
    else if (name == "--temperature")
      out.how.temperature = number<double>(name, given[i]);
    else if (name == "--top-k")
      out.how.top_k = number<std::int64_t>(name, given[i]);
    else if (name == "--top-p")
      out.how.top_p = number<double>(name, given[i]);
    else if (name == "--seed")
      out.how.seed = number<std::uint64_t>(name, given[i]);
    else if (name == "--weights")
      out.weights = ops::weight_form_of(given[i]);
    else
      throw config_error(text("unknown option ", name));
  }
  if (out.directory.empty()) throw config_error("usage: generate DIR [--prompt TEXT] [--tokens N] and so on");
  return out;
}

/// Writes a model that has learned one line by heart to ./model.
void write_model() {
  constexpr std::int64_t context = 32, samples = 64;
  std::string const line = "The ferry crosses the river at dawn, and at dusk it comes back. ";
  std::vector<std::int32_t> words, next;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    for (std::int64_t i = 0; i < context; ++i) {
      auto const at = static_cast<std::size_t>(sample + i);
      words.push_back(static_cast<unsigned char>(line[at % line.size()]));
      next.push_back(static_cast<unsigned char>(line[(at + 1) % line.size()]));
    }
  }
  comm::self_world world;
  auto trainer =
      make_trainer(nn::llama{.context = context, .layers = 2, .heads = 4, .key_heads = 2, .channels = 48, .window = 16},
                   optim::adamw{.learning_rate = 5e-3}, world);
  trainer.fit(data::in_memory(tensor_view<std::int32_t const>(words.data(), {samples, context}),
                              tensor_view<std::int32_t const>(next.data(), {samples, context})),
              {.steps = 120, .batch = 16});
  save_pretrained(trainer, "model");
}

void run(options given) {
  if (given.directory == "-") {
    write_model();
    given.directory = "model";
  }
  vocabulary const words(given.tokenizer, given.directory);
  auto const added = words.new_stream();
  auto const model = read_model(given.directory);
  comm::self_world world;
  std::optional<ops::integer_products> integers;  // of the model that is made meanwhile
  if (given.weights) integers.emplace(*given.weights);
  // All parameters are frozen, so that there are no gradients.
  auto trainer = make_trainer(model, optim::groups{optim::sgd{}, {{.names = "*", .frozen = true}}}, world);
  load_pretrained(trainer, given.directory);
  auto const ends = nn::end_tokens_in(given.directory);
  auto const context = model.with([](auto const& each) { return each.context; });
  std::printf("%s", given.prompt.c_str());
  generate(
      trainer, words.encode(given.prompt), given.tokens, context, given.how,
      [&](std::int32_t token) {
        if (std::find(ends.begin(), ends.end(), token) != ends.end()) return false;
        auto const more = added(token);  // a byte may be 0
        std::fwrite(more.data(), 1, more.size(), stdout);
        std::fflush(stdout);
        return true;
      },
      words.count());
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse({argv + 1, argv + argc}));
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "generate: %s\n", problem.what());
    return 1;
  }
}
