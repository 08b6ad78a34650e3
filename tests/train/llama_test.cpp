// test-timeout: 300
// test-sanitize: none
// A Llama trains under every axis as on one rank.
#include "../watchdog.hpp"
#include "meshes.hpp"

using namespace trireme;

namespace {

toy::training<nn::llama, toy::text> const training{
    {.vocabulary = 37, .context = 12, .layers = 5, .heads = 6, .key_heads = 3, .channels = 24, .hidden = 36},
    {.samples = 24},
    {.steps = 6, .batch = 8, .micro_batches = 4}};

template <class Precision>
void compare_with_serial(int ranks, nn::llama const& model, Precision const& precision, double most) {
  watchdog dog("a Llama's strategies", std::chrono::seconds(250));
  auto it = training;
  it.model = model;
  auto const serial = it.alone(meshes::clipped, precision);
  meshes::for_each_mesh(ranks, [&](std::string const& name, auto const& policy) {
    dog.now(name);
    INFO(name);
    toy::check_near(it.on(ranks, meshes::clipped, policy, precision).front(), serial, most);
  });
}

}  // namespace

TEST_CASE("every mesh of a Llama ends where serial training ends", "[train][strategies]") {
  compare_with_serial(GENERATE(1, 2, 3, 4, 8), training.model, precision::fp32{}, 1e-5);
}

TEST_CASE("a checkpointed Llama with a tied head and biases ends where serial training ends", "[train][strategies]") {
  auto model = training.model;
  model.checkpointed = model.tied = model.biased = true;
  compare_with_serial(GENERATE(2, 4), model, precision::fp32{}, 1e-5);
}
