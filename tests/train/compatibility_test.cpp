// test-alone: its compiler takes 3.4 GB
// test-sanitize: none

// The rules on combinations: the page that lists them is up to date, and permitted combinations train like serial
// training.
#include "trireme/train/compatibility.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "../support/missing.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "composition.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

nn::gpt const model{.vocabulary = 23, .context = 8, .layers = 2, .heads = 2, .channels = 8, .dropout = 0.1};
auto const four_steps = toy::of_gpt({.steps = 4, .batch = 8, .micro_batches = 4}, model, 16);

/// Whether the policies on so many threads equal serial training.
template <class... Policies>
void compare(int ranks, toy::outcome const& alone, double tolerance, Policies const&... policies) {
  toy::check_near(four_steps.on(ranks, toy::steady, policies...).front(), alone, tolerance);
}

template <class Axis>
Axis in_two(Axis axis) {
  if constexpr (requires { axis.stages; })
    axis.stages = 2;
  else
    axis.ways = 2;
  return axis;
}

/// Whether steps equal those of serial training.
template <class Axis>
constexpr bool is_serial = !std::is_same_v<Axis, parallel::diloco> && !std::is_same_v<Axis, parallel::parameter_server>;

template <class Parallel, class Compression = compression::none>
constexpr bool works = composition::broken<nn::gpt, Parallel, precision::fp32, Compression>.empty();

}  // namespace

TEST_CASE("docs/composition.md agrees with the rules", "[train][compatibility]") {
  auto const* const tests = std::getenv("TRIREME_TEST_DATA");  // set by ctest: the path of tests/
  if (tests == nullptr) return missing("TRIREME_TEST_DATA is not set: docs/composition.md was not compared");
  std::ifstream file(std::string(tests) + "/../docs/composition.md");
  std::string const there{std::istreambuf_iterator<char>(file), {}};
  INFO("run scripts/composition-table");
  CHECK((there == composition::page()));
}

TEST_CASE("every rule has an id of its own, a sentence and a remedy", "[train][compatibility]") {
  std::set<std::string_view> ids;
  for (auto const& rule : compatibility_rules) {
    INFO(rule.id);
    CHECK(ids.insert(rule.id).second);
    CHECK(!rule.sentence.empty());
    CHECK(!rule.remedy.empty());
  }
}

TEST_CASE("every axis and every pair of axes that no rule refuses is serial training", "[train][compatibility]") {
  watchdog dog("pairs of axes");
  auto const alone = four_steps.alone(toy::steady);
  int trained = 0;
  auto const check = [&]<class Parallel>(std::string const& name, int ranks, Parallel const& policy) {
    dog.now(name);
    INFO(name);
    compare(ranks, alone, 1e-5, policy);
    ++trained;
  };
  composition::for_each_axis([&]<class Axis>(std::type_identity<Axis>, std::string const& name) {
    if constexpr (works<Axis> && is_serial<Axis>) check(name, 2, in_two(Axis{}));
  });
  composition::for_each_pair([&]<class A, class B>(std::type_identity<parallel::mesh<A, B>>, std::string const& name) {
    if constexpr (works<parallel::mesh<A, B>> && is_serial<A> && is_serial<B>) {
      constexpr bool one_group = std::is_same_v<B, parallel::sequence>;  // tensor's
      check(name, one_group ? 2 : 4, parallel::mesh{in_two(A{}), in_two(B{})});
    }
  });
  CHECK(trained == 29);
}

TEST_CASE("lossless compressors and double precision train on meshes as serial training does",
          "[train][compatibility]") {
  watchdog dog("compressors on meshes");
  auto const alone = four_steps.alone(toy::steady);
  auto const with_stages = parallel::mesh{parallel::zero<1>{.ways = 2}, parallel::pipeline<>{.stages = 2}};
  auto const with_shares =
      parallel::mesh{parallel::zero<3>{.ways = 2}, parallel::tensor{.ways = 2}, parallel::sequence{}};
  compression::top_k const all{.ratio = 1};
  compare(4, alone, 1e-5, with_stages, all);
  compare(4, alone, 1e-5, with_stages, compression::error_feedback<compression::top_k>{all});
  compare(4, alone, 1e-5, with_shares, all);
  compare(4, alone, precision::bf16::tolerance, with_shares, compression::cast<bf16>{});
  auto const in_doubles = four_steps.alone(toy::steady, precision::fp64{});
  compare(4, in_doubles, 1e-10, with_stages, precision::fp64{});
  compare(4, in_doubles, 1e-10, with_shares, precision::fp64{});
}

TEST_CASE("reproducible pipelines have the state of one rank, or are refused", "[train][compatibility]") {
  watchdog dog("reproducible pipelines");
  auto const training = toy::of_gpt({.steps = 5, .batch = 14, .micro_batches = 8}, model, 16);
  auto const state = [&](int ranks, int ways, std::string const& schedule, int stages) {
    auto const how = parallel::mesh{parallel::data{.reproducible = true, .ways = ways},
                                    parallel::any_pipeline{.schedule = schedule, .stages = stages}};
    return training.on(ranks, optim::adamw{.clip = 0.1}, how).front().hash;
  };
  auto const expected = state(1, 1, "1f1b", 1);
  for (char const* schedule : {"1f1b", "interleaved"}) {
    INFO(schedule);
    CHECK(state(2, 1, schedule, 2) == expected);
    CHECK(state(4, 2, schedule, 2) == expected);
    CHECK(state(8, 4, schedule, 2) == expected);
  }
  CHECK(state(4, 1, "1f1b", 4) == expected);
  CHECK(state(8, 2, "1f1b", 4) == expected);
  for (char const* schedule : {"gpipe", "zbh1", "zbv", "dualpipe", "dualpipev"}) {
    CHECK_THROWS_WITH(state(2, 1, schedule, 2),
                      text("trireme::parallel::data: .reproducible adds the gradients of one micro-batch after the "
                           "other, which parallel::any_pipeline{.schedule = \"",
                           schedule, "\", .stages = 2, .chunks = 0} does not; use the schedule 1f1b or interleaved"));
  }
}
