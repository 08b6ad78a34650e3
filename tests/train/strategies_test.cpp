// test-timeout: 300
// test-sanitize: none
// Every strategy and mesh equals serial training, on threads.
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "meshes.hpp"

using namespace trireme;

namespace {

template <class Training, class Precision>
void compare_with_serial(watchdog& dog, int ranks, Training const& training, Precision const& precision, double most) {
  auto const serial = training.alone(meshes::clipped, precision);
  meshes::for_each_mesh(ranks, [&](std::string const& name, auto const& policy) {
    dog.now(name);
    INFO(name);
    toy::check_near(training.on(ranks, meshes::clipped, policy, precision).front(), serial, most);
  });
}

}  // namespace

TEST_CASE("every mesh ends where serial training ends", "[train][strategies]") {
  watchdog dog("strategies", std::chrono::seconds(250));
  compare_with_serial(dog, GENERATE(1, 2, 3, 4, 8), meshes::twenty_steps, precision::fp32{}, 1e-5);
}

TEST_CASE("short micro-batches and checkpointed blocks change nothing, under any mesh", "[train][strategies]") {
  watchdog dog("uneven samples");
  auto uneven = meshes::twenty_steps;
  uneven.schedule.steps = 6;
  uneven.schedule.batch = 7;
  uneven.model.checkpointed = true;
  compare_with_serial(dog, GENERATE(2, 4, 8), uneven, precision::fp32{}, 1e-5);
}

TEST_CASE("in bfloat16 every mesh stays within the tolerance of the precision", "[train][strategies]") {
  watchdog dog("strategies in bfloat16");
  compare_with_serial(dog, GENERATE(2, 3, 4), meshes::twenty_steps, precision::bf16{}, precision::bf16::tolerance);
}

TEST_CASE("copies of a tensor on several ranks are equal", "[train][strategies]") {
  watchdog dog("copies");
  int const ranks = GENERATE(2, 4, 8);
  meshes::for_each_mesh(ranks, [&](std::string const& name, auto const& policy) {
    dog.now(name);
    INFO(name);
    std::vector<std::map<std::string, std::vector<float>>> kept(static_cast<std::size_t>(ranks));
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(meshes::model, optim::adamw{.learning_rate = 1e-3}, world, policy);
      trainer.fit(meshes::twenty_steps.data, {.steps = 5, .batch = 8, .micro_batches = 4});
      auto& mine = kept[static_cast<std::size_t>(world.rank())];
      trainer.for_each_state(
          [&](std::string const& what, parameter_info const& part, std::int64_t first, auto view) {
            for_each_run(part, first, view.size(), [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
              auto& values = mine[text(what, "@", in_whole)];
              for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(view[in_part - first + i]));
            });
          },
          true);
    });
    std::map<std::string, std::vector<float>> seen;  // by name, first element and size
    int compared = 0;
    for (auto const& rank : kept) {
      for (auto const& [what, values] : rank) {
        auto const [first, is_new] = seen.try_emplace(text(what, "+", values.size()), values);
        if (is_new) continue;
        ++compared;
        INFO(what);
        CHECK(first->second == values);
      }
    }
    CHECK(!seen.empty());
    // Each ZeRO slice is on one rank, unless ranks of a tensor group hold the same vectors; and if a pipeline returns
    // to its first stage, both uses of the token table are there.
    bool const cut = name.find("zero") != name.npos && name.find("tensor") == name.npos;
    bool const comes_back = name.starts_with("pipeline=") && name.ends_with('v');
    bool const has_copies = !cut && !comes_back;
    CHECK((compared > 0) == has_copies);
  });
}

TEST_CASE("a single axis is a mesh of one", "[train][strategies]") {
  watchdog dog("strategies");
  auto three_steps = meshes::twenty_steps;
  three_steps.schedule.steps = 3;
  auto const serial = three_steps.alone(meshes::clipped);
  auto const check = [&](auto const& policy) {
    CHECK(toy::between(three_steps.on(2, meshes::clipped, policy).front(), serial).state < 1e-6);
  };
  check(parallel::tensor{});
  check(parallel::pipeline<schedule::zb_v>{.cuts = {1, 3, 5}});
  check(parallel::mesh{parallel::tensor{.ways = 2}});
}

TEST_CASE("a mesh that does not fit is refused in one sentence with its numbers", "[train][strategies]") {
  watchdog dog("refusals");
  auto const sentence = [](int ranks, auto const& policy) {
    return sentence_of<config_error>([&] {
      launch(comm::threads{.ranks = ranks},
             [&](auto& world) { static_cast<void>(make_trainer(meshes::model, optim::adamw{}, world, policy)); });
    });
  };
  using meshes::any;
  CHECK(sentence(4, any(parallel::data{}, 3, 1, "1f1b")) ==
        "trireme::parallel::mesh: data=3, pipeline=1, context=1, tensor=1 takes 3 ranks, but the world has 4; change a "
        "degree or "
        "the number of ranks");
  CHECK(
      sentence(3, any(parallel::data{}, 0, 1, "1f1b", {.tensor = 2})) ==
      "trireme::parallel::mesh: data=0, pipeline=1, context=1, tensor=2 (0: the remaining ranks) takes a multiple of 2 "
      "ranks, but the "
      "world has 3; change a degree or the number of ranks");
  CHECK(sentence(2, any(parallel::data{}, 0, 0, "1f1b")) ==
        "trireme::parallel::mesh: data and pipeline both ask for the remaining ranks (0); give one of them a degree");
  CHECK(sentence(2, any(parallel::data{}, -1, 1, "1f1b")) ==
        "trireme::parallel::data: .ways is -1; it must be at least 0");
  CHECK(sentence(8, any(parallel::data{}, 1, 8, "1f1b")) ==
        "trireme::schedule::cut_units: 8 stages of 1 chunk need at least 8 units, but the model has 7; use fewer "
        "stages, or a model of more layers");
  CHECK(sentence(2, any(parallel::data{}, 1, 2, "2f2b")) ==
        "trireme::parallel::pipeline: there is no schedule \"2f2b\"; the schedules are gpipe, 1f1b, interleaved, zbh1, "
        "zbv, dualpipe, dualpipev");
  auto const heads = sentence(4, parallel::tensor{});
  CHECK(heads.find("4 ways") != std::string::npos);
  CHECK(heads.find("3 heads") != std::string::npos);
}
