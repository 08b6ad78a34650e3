// Ranks that share the positions of each sample train as one rank does, on threads.
#include "trireme/parallel/context.hpp"

#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/parallel/mesh.hpp"

using namespace trireme;
using parallel::context_method;

namespace {

template <class Precision>
void compare(Precision const& precision, double most, std::int64_t steps = 20) {
  // Ranges of 6, 3, 4, 2 and 3 positions; more heads than ranks, unevenly distributed.
  auto const training =
      toy::of_gpt({.steps = steps, .batch = 6, .micro_batches = 2},
                  {.vocabulary = 37, .context = 24, .layers = 2, .heads = 5, .channels = 30, .dropout = 0.1}, 24);
  optim::adamw const clipped{.learning_rate = 1e-3, .clip = 0.5};
  auto const serial = training.alone(clipped, precision);
  for (int const ways : {2, 3, 4}) {
    for (auto const& policy : {parallel::context{.ways = ways}, parallel::context{.ways = ways, .balanced = false},
                               parallel::context{.ways = ways, .method = context_method::all_to_all}}) {
      INFO(to_string(policy));
      toy::check_near(training.on(ways, clipped, policy, precision).front(), serial, most);
    }
  }
}

}  // namespace

TEST_CASE("context parallelism equals serial training with dropout, by ring and by all_to_all", "[train][context]") {
  watchdog dog("context");
  compare(precision::fp32{}, 1e-5);
  compare(precision::fp64{}, 1e-10, 5);
}

TEST_CASE("context in bfloat16 stays within the tolerance of the precision", "[train][context]") {
  watchdog dog("context in bfloat16");
  compare(precision::bf16{}, precision::bf16::tolerance);
}

TEST_CASE("step, evaluate, predict and checkpointed blocks get whole samples under context parallelism",
          "[train][context]") {
  watchdog dog("all calls of a trainer");
  auto model = toy::gpt;
  model.checkpointed = true;
  toy::text const data{24};
  std::vector<std::int32_t> inputs(7 * 12), targets(7 * 12);
  std::vector<std::int64_t> const ids{3, 4, 5, 6, 7, 8, 9};
  data.read(ids, inputs.data(), targets.data());
  for (std::size_t i = 0; i < targets.size(); i += 5) targets[i] = -1;
  auto const batch = make_samples(tensor_view<std::int32_t const>(inputs.data(), {7, 12}),
                                  tensor_view<std::int32_t const>(targets.data(), {7, 12}), ids);
  auto const prompt = tensor_view<std::int32_t const>(inputs.data(), {1, 7});
  auto const numbers = [&](auto& world, auto const& policy) {
    auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.1}, world, policy);
    std::vector<double> out;
    for (int step = 0; step < 3; ++step) {
      auto const done = trainer.step(batch);
      out.insert(out.end(), {done.loss, done.norm, static_cast<double>(done.samples)});
    }
    out.push_back(trainer.evaluate(data, 5));
    auto const logits = trainer.predict(prompt);
    for (auto const each : logits.span()) out.push_back(static_cast<double>(each));
    return out;
  };
  comm::self_world self;
  auto const alone = numbers(self, parallel::data{});
  for (auto const method : {context_method::ring, context_method::all_to_all}) {
    std::vector<double> together;
    launch(comm::threads{.ranks = 3}, [&](auto& world) {
      auto const mine =
          numbers(world, parallel::mesh{parallel::zero<2>{.ways = 1}, parallel::context{.method = method}});
      if (world.rank() == 2) together = mine;
    });
    REQUIRE(together.size() == alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(together[i] == Approx(alone[i]).epsilon(1e-5).margin(1e-6));
  }
}

TEST_CASE("the memory of activations falls with the number of ranks that share positions", "[train][context]") {
  watchdog dog("activations");
  nn::gpt const model{.vocabulary = 37, .context = 256, .layers = 4, .heads = 4, .channels = 32};
  auto const peak = [&](int ranks, auto const& policy) {
    std::size_t most = 0;
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(model, optim::sgd{}, world, policy);
      trainer.fit(toy::text_for(model, 8), {.steps = 2, .batch = 4, .micro_batches = 1});
      if (world.rank() == 0) most = trainer.engine().peak_bytes();
    });
    return static_cast<double>(most);
  };
  auto const whole = peak(1, parallel::data{});
  auto const ring = peak(4, parallel::context{}) / whole;
  auto const dealt = peak(4, parallel::context{.method = context_method::all_to_all}) / whole;
  CAPTURE(ring, dealt);
  CHECK(ring < 0.33);  // and buffers for the keys in transit
  CHECK(dealt < 0.4);  // which also keeps what was scattered
}

TEST_CASE("samples that context parallelism cannot cut are refused in one sentence with the numbers",
          "[train][context]") {
  watchdog dog("refusals");
  auto const sentence = [](int ranks, auto const& policy, nn::gpt const& model) {
    return sentence_of<config_error>(
        [&] { static_cast<void>(toy::of_gpt({.steps = 1, .batch = 4}, model, 4).on(ranks, optim::sgd{}, policy)); });
  };
  nn::gpt const odd{.vocabulary = 37, .context = 15, .layers = 1, .heads = 2, .channels = 8};
  CHECK(sentence(3, parallel::context{}, odd) ==
        "trireme::parallel::context: samples of 15 positions cannot be cut into 6 equal slices, 2 for each of 3 "
        "ways; use samples of a multiple of 6 positions, or use fewer ways");
  CHECK(sentence(3, parallel::context{.balanced = false}, odd) == "");
  CHECK(sentence(2, parallel::context{.balanced = false}, odd) ==
        "trireme::parallel::context: samples of 15 positions cannot be cut into 2 equal slices, 1 for each of 2 "
        "ways; use samples of a multiple of 2 positions, or use fewer ways");
  CHECK(sentence(3, parallel::context{.method = context_method::all_to_all}, odd) ==
        "trireme::parallel::context: all_to_all distributes heads, but 2 heads are not enough for 3 ways; use fewer "
        "ways, or .method = context_method::ring");
  CHECK(sentence(2, parallel::mesh{parallel::data{.reproducible = true, .ways = 1}, parallel::context{}}, odd) ==
        "trireme::parallel::data: .reproducible adds whole micro-batches, but parallel::context divides their "
        "positions among "
        "2 ranks; leave one of them out");
}
