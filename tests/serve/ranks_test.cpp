#include "trireme/serve/ranks.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/serve/engine.hpp"
#include "trireme/train/generate.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

TEST_CASE("ranks that share a model serve it together", "[serve]") {
  watchdog dog("serving on two ranks");
  nn::llama const model{.vocabulary = 37, .context = 48, .layers = 2, .heads = 4, .key_heads = 2, .channels = 32};
  std::vector<std::vector<std::int32_t>> expected(6), told(6);
  std::vector<serve::finish> ends(6, serve::finish::none);
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(model, optim::groups{optim::sgd{}, {{.names = "*", .frozen = true}}}, world,
                                parallel::tensor{.ways = 2});
    trainer.initialise(3);
    auto const prompt = [](std::size_t i) {
      std::vector<std::int32_t> out;
      for (std::size_t t = 0; t <= 5 * i; ++t) out.push_back(static_cast<std::int32_t>((i * 11 + t * 7 + t * t) % 37));
      return out;
    };
    for (std::size_t i = 0; i < 6; ++i) {
      std::vector<std::int32_t> alone;
      generate(trainer, prompt(i), 12, model.context, {.temperature = 0},
               [&](std::int32_t token) { return alone.push_back(token), true; });
      if (world.rank() == 0) expected[i] = alone;
    }
    if (world.rank() != 0) return serve::follow(trainer);
    auto decoder = serve::shared_decoder_of(trainer, model);
    serve::engine engine(decoder, {.positions = 96, .most_running = 8, .tokens_in_pass = 16});
    std::thread other([&] {
      for (std::size_t i = 0; i < 6; ++i) {
        engine.submit({.prompt = prompt(i), .max_tokens = 12, .temperature = 0}, [&, i](serve::event const& one) {
          told[i].push_back(one.token);
          ends[i] = one.finish;
        });
      }
      while (engine.now().passes == 0) std::this_thread::yield();  // until work() has begun
      engine.drain();
      std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // the other rank is told that there is nothing
      engine.stop();
    });
    engine.work();
    other.join();
    CHECK(engine.now().pages_used == 0);
    CHECK(contains(sentence_of<config_error>([&] { engine.work(); }), "it has stopped"));
    CHECK(contains(sentence_of<config_error>([&] { serve::follow(trainer); }), "the first rank has the engine"));
  });
  CHECK(told == expected);
  for (auto const each : ends) CHECK(each == serve::finish::length);
}
