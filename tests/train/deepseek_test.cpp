// test-timeout: 300
// test-sanitize: none
// A DeepSeek trains under every axis as it does alone.
#include "trireme/nn/deepseek.hpp"

#include "../formats/scratch.hpp"
#include "../watchdog.hpp"
#include "expert_cases.hpp"
#include "meshes.hpp"

using namespace trireme;

namespace {

toy::training<nn::deepseek, toy::text> const training{{.vocabulary = 37,
                                                       .context = 12,
                                                       .layers = 5,
                                                       .dense = 2,
                                                       .channels = 24,
                                                       .heads = 6,
                                                       .query_rank = 12,
                                                       .rank = 8,
                                                       .plain = 4,
                                                       .rotary_width = 2,
                                                       .values = 4,
                                                       .hidden = 36,
                                                       .experts = 6,
                                                       .top_k = 2,
                                                       .expert_hidden = 12,
                                                       .groups = 3,
                                                       .chosen_groups = 2},
                                                      {.samples = 24},
                                                      {.steps = 6, .batch = 8, .micro_batches = 4}};

template <class Each>
void compare_with_serial(int ranks, nn::deepseek const& model, Each const& for_each_mesh) {
  watchdog dog("a DeepSeek's strategies", std::chrono::seconds(250));
  auto it = training;
  it.model = model;
  auto const serial = it.alone(meshes::clipped);
  for_each_mesh(ranks, [&](std::string const& name, auto const& policy) {
    dog.now(name);
    INFO(name);
    toy::check_near(it.on(ranks, meshes::clipped, policy).front(), serial, 1e-5);
  });
}
auto const every_mesh = [](int ranks, auto&& f) { meshes::for_each_mesh(ranks, f); };
auto const every_deal = [](int ranks, auto&& f) { expert_cases::for_each_mesh(ranks, f); };

}  // namespace

TEST_CASE("every mesh of a DeepSeek ends where serial training ends", "[train][strategies]") {
  compare_with_serial(GENERATE(1, 2, 3, 4, 8), training.model, every_mesh);
}

TEST_CASE("so it does where its experts are dealt out", "[train][strategies][experts]") {
  compare_with_serial(GENERATE(2, 3, 4), training.model, every_deal);
}

TEST_CASE("so it does checkpointed, with queries of one product and a bias that stays", "[train][strategies]") {
  auto model = training.model;
  model.checkpointed = true;
  model.query_rank = 0;
  model.speed = 0;
  compare_with_serial(4, model, every_mesh);
  compare_with_serial(4, model, every_deal);
}

TEST_CASE("its checkpoints, with the biases that balance experts, are read however they are dealt out",
          "[train][checkpoint]") {
  watchdog dog("checkpoints of a DeepSeek");
  scratch folder;
  auto const saved =
      training.go_on(4, "", 3, folder.path(), meshes::clipped, expert_cases::dealt(parallel::zero<1>{}, 2, 2));
  CHECK(training.go_on(1, folder.path(), 3, "", meshes::clipped, parallel::data{}) == saved);
  CHECK(training.go_on(3, folder.path(), 3, "", meshes::clipped, expert_cases::dealt(parallel::data{}, 1, 3)) == saved);
  CHECK(training.go_on(4, folder.path(), 3, "", meshes::clipped,
                       expert_cases::with_stages(parallel::data{}, 1, 2, "1f1b", 2)) == saved);
}
