// deepseek [STEPS]
//
// Trains a small DeepSeek V3 (latent attention, mixtures of experts that are balanced by biases, a module that predicts
// the word after the next one) for STEPS steps (200) on eight threads: two replicas of two pipeline stages under
// DualPipe, with each stage's experts distributed over two ranks. It learns to continue sequences like 3 10 17 24 ...,
// prints the loss (the loss of a step includes the module's, the others are only the model's), and at the end the
// biases of the experts: an expert that was chosen too often has a lower one.
//
// test: 30
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "trireme/nn/deepseek.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

constexpr std::int64_t words = 61, samples = 512, context = 16;

nn::deepseek const model{.vocabulary = words,
                         .context = context,
                         .layers = 4,
                         .dense = 1,
                         .channels = 32,
                         .heads = 4,
                         .query_rank = 24,
                         .rank = 16,
                         .plain = 8,
                         .rotary_width = 4,
                         .values = 8,
                         .hidden = 96,
                         .experts = 8,
                         .top_k = 2,
                         .expert_hidden = 32,
                         .groups = 4,
                         .chosen_groups = 2,
                         .ahead = 1};

/// Sequences with differences of 1 to 10, and their next words.
struct sequences {
  std::vector<std::int32_t> x, y;
  sequences() {
    for (std::int64_t n = 0; n < samples; ++n) {
      for (std::int64_t t = 0; t < context; ++t) {
        auto const word = [&](std::int64_t at) {
          return static_cast<std::int32_t>((n * 7 + at * (1 + n % 10)) % words);
        };
        x.push_back(word(t)), y.push_back(word(t + 1));
      }
    }
  }
};

int train(std::int64_t steps) {
  sequences const all;
  data::in_memory const data(tensor_view<std::int32_t const>(all.x.data(), {samples, context}),
                             tensor_view<std::int32_t const>(all.y.data(), {samples, context}));
  trireme::launch(comm::threads{.ranks = 8}, [&](auto& world) {
    auto trainer =
        make_trainer(model, optim::adamw{.learning_rate = 5e-3, .clip = 1}, world,
                     parallel::mesh{parallel::data{.ways = 2}, parallel::pipeline<schedule::dual_pipe>{.stages = 2},
                                    parallel::expert{}});
    bool const prints = world.rank() == 0;
    auto const before = trainer.evaluate(data);
    if (prints) fmt::print("{}\nbefore: loss {:.4f}\n", to_string(model), before);
    trainer.on_step([&](step_report const& done) {
      if (prints && done.step % 20 == 0) fmt::print("step {}: loss {:.4f}\n", done.step, done.loss);
    });
    trainer.fit(data, {.steps = steps, .batch = 64, .micro_batches = 16});
    auto const after = trainer.evaluate(data);
    if (prints) fmt::print("after: loss {:.4f}\n", after);
    if (!(after < before)) throw error("the loss has not fallen");
    trainer.for_each_state([&](std::string const& name, parameter_info const&, std::int64_t, auto values) {
      if (!name.ends_with("router.bias")) return;
      std::string line = name.substr(name.find('/') + 1) + ":";
      for (std::int64_t i = 0; i < values.size(); ++i) line += fmt::format(" {:+.3f}", static_cast<double>(values[i]));
      fmt::print("{}\n", line);
    });
  });
  return 0;
}

std::int64_t number(char const* text) {
  std::int64_t value = 0;
  auto const [end, problem] = std::from_chars(text, text + std::strlen(text), value);
  if (problem != std::errc{} || *end != '\0' || value < 1) throw std::invalid_argument(text);
  return value;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count > 2) throw std::invalid_argument(arguments[2]);
    return train(count > 1 ? number(arguments[1]) : 200);
  } catch (std::invalid_argument const& wrong) {
    fmt::print(stderr, "deepseek: \"{}\" is not a number of steps\n", wrong.what());
    return 2;
  } catch (std::exception const& problem) {
    fmt::print(stderr, "deepseek: {}\n", problem.what());
    return 1;
  }
}
