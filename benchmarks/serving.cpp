// serving [fp32|bf16|int8|int4]... [DIRECTORY]: tokens a second of serve::engine with 1, 4 and 16 streams, one JSON
// object a row: answers of 64 tokens to prompts of 128. The model is a LLaMA of 32 million random parameters, or that
// in DIRECTORY. int8 and int4 have products of integers, and are otherwise bf16. Of several kinds of numbers (default:
// fp32) each is measured in turn, three times, and the row has the medians.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "random_tokens.hpp"

#include "trireme/nn/pretrained.hpp"
#include "trireme/ops/host/integer_products.hpp"
#include "trireme/serve/engine.hpp"
#include "trireme/train/pretrained.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

/// A model with its numbers.
struct candidate {
  virtual ~candidate() = default;
  virtual serve::decoder& decoder() = 0;
  std::string numbers;
  struct figures {
    std::vector<double> prompts, answers;  // tokens a second
  };
  figures of_streams[3];
};

template <class Precision>
class loaded final : public candidate {
 public:
  loaded(nn::llama const& model, std::string const& directory, std::string const& name)
      : trainer_(make(model, world_)), decoder_(serve::decoder_of(trainer_, model)) {
    numbers = name;
    if (!directory.empty()) load_pretrained(trainer_, directory);
  }
  serve::decoder& decoder() override { return decoder_; }

 private:
  static auto make(nn::llama const& model, comm::self_world& world) {
    return make_trainer(model, optim::groups{optim::sgd{}, {{.names = "*", .frozen = true}}}, world, Precision{});
  }
  using trainer = decltype(make(std::declval<nn::llama const&>(), std::declval<comm::self_world&>()));
  comm::self_world world_;
  trainer trainer_;
  serve::trainer_decoder<trainer> decoder_;
};

std::unique_ptr<candidate> load(nn::llama const& model, std::string const& directory, std::string const& numbers) {
  if (numbers == "fp32") return std::make_unique<loaded<precision::fp32>>(model, directory, numbers);
  std::optional<ops::integer_products> integers;
  if (numbers != "bf16") integers.emplace(ops::weight_form_of(numbers));
  return std::make_unique<loaded<precision::bf16>>(model, directory, numbers);
}

void measure(candidate& of, int streams, candidate::figures& into) {
  serve::engine engine(of.decoder(), {.positions = 4096});
  constexpr std::int64_t prompt = 128, answer = 64;
  using clock = std::chrono::steady_clock;
  auto const seconds = [](clock::duration time) { return std::chrono::duration<double>(time).count(); };
  int answers = 0;  // that have begun
  for (int stream = 0; stream < streams; ++stream) {
    serve::request one{.max_tokens = answer, .temperature = 0};
    for (std::int64_t t = 0; t < prompt; ++t) {
      auto const at = static_cast<std::uint64_t>(stream * 1000 + t);
      one.prompt.push_back(static_cast<std::int32_t>(mix(at) % static_cast<std::uint64_t>(of.decoder().vocabulary())));
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
  into.prompts.push_back(static_cast<double>(streams * prompt) / seconds(prompts - begin));
  into.answers.push_back(static_cast<double>(engine.now().tokens_generated - first) / seconds(end - prompts));
}

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

void run(std::vector<std::string> kinds, std::string const& directory) {
  nn::llama model{.vocabulary = 16384,
                  .context = 1024,
                  .layers = 8,
                  .heads = 8,
                  .key_heads = 4,
                  .channels = 512,
                  .hidden = 1408,
                  .tied = true};
  if (!directory.empty()) model = nn::read_description<nn::llama>(directory);
  if (kinds.empty()) kinds.emplace_back("fp32");
  std::vector<std::unique_ptr<candidate>> all;
  for (auto const& each : kinds) all.push_back(load(model, directory, each));
  constexpr int streams[] = {1, 4, 16};
  candidate::figures unused;
  for (auto const& each : all) measure(*each, 1, unused);  // rounds and packs weights
  for (std::size_t i = 0; i < 3; ++i) {
    for (int round = 0; round < 3; ++round) {
      for (auto const& each : all) measure(*each, streams[i], each->of_streams[i]);
    }
    for (auto const& each : all) {
      std::printf(
          "{\"numbers\": \"%s\", \"streams\": %d, \"prompt_tokens_a_second\": %.1f, \"tokens_a_second\": %.1f}\n",
          each->numbers.c_str(), streams[i], median(each->of_streams[i].prompts), median(each->of_streams[i].answers));
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> kinds;
    std::string directory;
    for (std::string_view const given : std::vector<std::string_view>(argv + 1, argv + argc)) {
      if (given == "fp32" || given == "bf16" || given == "int8" || given == "int4")
        kinds.emplace_back(given);
      else
        directory = given;
    }
    run(std::move(kinds), directory);
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "serving: %s\n", problem.what());
    return 1;
  }
}
