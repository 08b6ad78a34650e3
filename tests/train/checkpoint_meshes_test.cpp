// test-timeout: 300
// test-sanitize: none
#include "trireme/train/checkpoint.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../formats/scratch.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor.hpp"

using namespace trireme;

namespace {

/// Sizes that divide nothing: 3 heads, 37 tokens, 4 units.
auto const two_steps = toy::of_gpt({.steps = 2, .batch = 8, .micro_batches = 8}, [] {
  auto model = toy::gpt;
  model.channels = 15;
  return model;
}());

/// A mesh on some ranks. `run` resumes from `load`, trains until `steps`, and saves to `save`, unless these are empty.
struct setting {
  std::string name;
  std::function<std::uint64_t(std::string const& load, std::int64_t steps, std::string const& save)> run;
};

template <class Parallel>
setting on(int ranks, Parallel const& mesh) {
  return {text(to_string(mesh), " on ", ranks),
          [=](std::string const& load, std::int64_t steps, std::string const& save) {
            return two_steps.go_on(ranks, load, steps, save, toy::adaptive, mesh);
          }};
}

std::vector<setting> settings() {
  namespace p = parallel;
  return {on(1, p::data{}),
          on(3, p::data{.bucket_bytes = 4096}),
          on(2, p::zero<1>{.bucket_bytes = 4096}),
          on(3, p::zero<2>{.bucket_bytes = 4096}),
          on(2, p::zero<3>{.bucket_bytes = 4096}),
          on(2, p::tensor{}),
          on(3, p::tensor{}),
          on(4, p::mesh{p::zero<1>{}, p::tensor{.ways = 2}, p::sequence{}}),
          on(4, p::mesh{p::zero<1>{}, p::context{.ways = 2}}),
          on(2, p::mesh{p::data{}, p::pipeline<>{.stages = 2}}),
          on(4, p::mesh{p::data{}, p::pipeline<>{.stages = 2}}),
          on(8, p::mesh{p::zero<1>{}, p::pipeline<>{.stages = 2}, p::tensor{.ways = 2}})};
}

}  // namespace

TEST_CASE("every mesh starts from the same state, and reads checkpoints of every other mesh",
          "[train][checkpoint][mesh]") {
  watchdog dog("checkpoints of meshes", std::chrono::seconds(240));
  auto const all = settings();
  auto const start = all.front().run("", 0, "");
  for (auto const& from : all) {
    dog.now(from.name);
    INFO("from " << from.name);
    CHECK(from.run("", 0, "") == start);
    scratch folder;
    auto const saved = from.run("", 2, folder.path());
    CHECK(saved != start);
    for (auto const& to : all) {
      INFO("to " << to.name);
      CHECK(to.run(folder.path(), 2, "") == saved);
    }
  }
}
