#include <bit>
#include <cstdint>
#include <filesystem>
#include <string>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/data/function.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/train/build.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

nn::mlp const model{.hidden = {8, 8}};
auto const data_of_all = data::function(+[](float x) { return x * x; }, {.samples = 64});

/// Flips a bit of the first number of a view.
template <class View>
void flip_bit(View const& view) {
  auto& first = raw(view)[0];
  using bits = std::conditional_t<sizeof(first) == 4, std::uint32_t, std::uint16_t>;
  first = std::bit_cast<std::remove_reference_t<decltype(first)>>(static_cast<bits>(std::bit_cast<bits>(first) ^ 64U));
}

/// The error of a trainer with these policies that trains for 20 steps, with `spoil(trainer)` on one rank after the
/// seventh.
/// @returns the sentence, and in `step` the step after which it was thrown.
template <class Spoil, class... Policies>
std::string spoiled(int ranks, int where, fit_options const& options, std::int64_t& step, Spoil spoil,
                    Policies... policies) {
  return sentence_of<numeric_error>([&] {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(model, optim::adamw{}, world, policies...);
      trainer.initialise(3);
      trainer.on_step([&](step_report const& done) {
        if (world.rank() == 0) step = done.step + 1;
        if (done.step == 6 && world.rank() == where) spoil(trainer);
      });
      trainer.fit(data_of_all, options);
    });
  });
}
auto const spoil_parameter = [](auto& trainer) {
  auto& exchange = trainer.exchange();
  flip_bit(exchange.parameter_values(exchange.plan().entries()[1]));
};
auto const spoil_moment = [](auto& trainer) {
  bool done = false;
  trainer.for_each_state(
      [&](std::string const& name, parameter_info const&, std::int64_t, auto view) {
        using element = typename decltype(view)::value_type;  // the views are read-only; this test changes one
        if (!done && name.starts_with("first_moment/"))
          flip_bit(tensor_view<element>(const_cast<element*>(raw(view)), view.extents()));
        done = done || name.starts_with("first_moment/");
      },
      true);
};

constexpr fit_options every_five{.steps = 20, .batch = 12, .check_every = 5};

}  // namespace

TEST_CASE("a flipped bit in one replica's parameters is reported at the next check, with tensor and ranks",
          "[train][replicas]") {
  watchdog const guard("a flipped bit");
  std::int64_t step = 0;
  auto const said = spoiled(2, 1, every_five, step, spoil_parameter);
  INFO(said);
  CHECK(contains(said, "0.bias\" on ranks 0 and 1 differ"));
  CHECK(step == 9);  // the callback of step 10 was not reached
  CHECK(spoiled(2, 1, {.steps = 20, .batch = 12, .check_every = 0}, step, spoil_parameter) == "");
  CHECK(step == 20);
}

TEST_CASE("the corrupted one of three replicas is named", "[train][replicas]") {
  watchdog const guard("a flipped bit of three");
  for (int rank = 0; rank < 3; ++rank) {
    std::int64_t step = 0;
    auto const said = spoiled(3, rank, every_five, step, spoil_parameter);
    INFO(said);
    CHECK(contains(said, text("on rank ", rank, " differs from those of the other 2 ranks")));
  }
}

TEST_CASE("moments are compared too, and parameters where moments are sharded", "[train][replicas]") {
  watchdog const guard("other state");
  std::int64_t step = 0;
  auto said = spoiled(2, 1, every_five, step, spoil_moment);
  INFO(said);
  CHECK(contains(said, "\"first_moment/"));
  CHECK(contains(said, "on ranks 0 and 1 differ"));
  fit_options const at_once{.steps = 20, .batch = 12, .check_every = 1};
  auto const untouched = [](auto&) {};
  CHECK(spoiled(2, 1, at_once, step, untouched) == "");
  CHECK(spoiled(2, 1, at_once, step, untouched, parallel::zero<1>{}) == "");
  CHECK(spoiled(2, 1, at_once, step, untouched, parallel::zero<3>{}) == "");
  CHECK(spoiled(2, 1, at_once, step, untouched, precision::bf16{}) == "");
  CHECK(spoiled(2, 1, at_once, step, untouched, compression::error_feedback<compression::top_k>{}) == "");
}

TEST_CASE("corrupted state is not saved", "[train][replicas]") {
  watchdog const guard("a save of spoiled state");
  scratch folder;
  auto const said = sentence_of<numeric_error>([&] {
    launch(comm::threads{.ranks = 2}, [&](auto& world) {
      auto trainer = make_trainer(model, optim::sgd{}, world);
      trainer.save(folder.path());
      trainer.fit(data_of_all, {.steps = 3, .batch = 12});
      if (world.rank() == 1) spoil_parameter(trainer);
      trainer.save(folder.path());
    });
  });
  CHECK(contains(said, "on ranks 0 and 1 differ"));
  CHECK(std::filesystem::exists(folder.path() + "/step-0000000000"));
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/step-0000000003"));
}

TEST_CASE("a build is identified by the settings that affect bits", "[train][replicas]") {
  auto const here = ops::detected();
  ops::detected(ops::cpu_level::baseline);
  auto const plain = build_text<precision::fp32>();
  ops::detected(here);
  CHECK(contains(plain, text("trireme ", TRIREME_VERSION)));
  CHECK(contains(plain, "CPU level baseline"));
  CHECK((here == ops::cpu_level::baseline) == (plain == build_text<precision::fp32>()));
}
