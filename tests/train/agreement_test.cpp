// test-sanitize: thread
// Whatever differs between ranks but must be equal is reported at once, with both ranks and both values.
#include <cfenv>
#include <chrono>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../support/spline.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/data/function.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/any_trainer.hpp"

using namespace trireme;

namespace {

/// The error of an action on each of some ranks; "" if there is none.
template <class Action>
std::vector<std::string> on_ranks(int ranks, Action&& action) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  launch(comm::threads{.ranks = ranks, .deadline = std::chrono::seconds(20)},
         [&](auto& world) { said[static_cast<std::size_t>(world.rank())] = sentence_of([&] { action(world); }); });
  return said;
}
std::vector<std::string> all(int ranks, std::string const& sentence) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks), sentence);
}

data::function<float (*)(float)> curve(std::int64_t samples) {
  return data::function(+[](float x) { return x * x; }, {.samples = samples, .low = -1, .high = 1});
}
nn::mlp const small{.hidden = {4}};

}  // namespace

TEST_CASE("descriptions that differ between ranks are refused when the trainer is made", "[train][agreement]") {
  watchdog const guard("descriptions");
  std::string const end = "; make the trainer of the same descriptions on every rank";
  CHECK(on_ranks(2, [](auto& world) {
          double const rate = world.rank() == 0 ? 1e-3 : 2e-3;
          static_cast<void>(make_trainer(small, optim::adamw{.learning_rate = rate}, world));
        }) == all(2, "trireme::trainer: the learning rate is 0.001 on rank 0 but 0.002 on rank 1" + end));
  CHECK(on_ranks(3,
                 [](auto& world) {
                   double const clip = world.rank() == 2 ? 1 : 0;
                   static_cast<void>(make_trainer(small, optim::sgd{.clip = clip}, world));
                 }) == all(3, "trireme::trainer: the optimizer is " + to_string(optim::sgd{.clip = 0}) +
                                  " on rank 0 but " + to_string(optim::sgd{.clip = 1}) + " on rank 2" + end));
  CHECK(on_ranks(2,
                 [](auto& world) {
                   nn::mlp const model{.hidden = {world.rank() == 0 ? 4 : 8}};
                   static_cast<void>(make_trainer(model, optim::sgd{}, world, parallel::zero<1>{}));
                 }) ==
        all(2,
            "trireme::trainer: the model is nn::mlp{.inputs = 1, .hidden = {4}, .outputs = 1, .act = "
            "ops::activation::tanh} on rank 0 but nn::mlp{.inputs = 1, .hidden = {8}, .outputs = 1, .act = "
            "ops::activation::tanh} on rank 1" +
                end));
  CHECK(on_ranks(2,
                 [](auto& world) {
                   static_cast<void>(make_trainer(small, optim::sgd{}, world,
                                                  parallel::data{.bucket_bytes = 4096 * (1 + world.rank())}));
                 }) ==
        all(2,
            "trireme::trainer: the parallel strategy is parallel::data{.bucket_bytes = 4096} on rank 0 but "
            "parallel::data{.bucket_bytes = 8192} on rank 1" +
                end));
  // A model with its own storage has no description; its parameters are compared.
  CHECK(on_ranks(2,
                 [](auto& world) {
                   toy::spline model;
                   if (world.rank() == 1) model.knots.resize(17), model.gradient.resize(17);
                   static_cast<void>(make_trainer(model, optim::sgd{}, world));
                 })[0]
            .starts_with("trireme::exchange: a parameter is \"values at the knots of the spline\" of shape ("));
}

TEST_CASE("arguments of fit and seeds that differ between ranks are refused before the first step",
          "[train][agreement]") {
  watchdog const guard("arguments");
  auto const fitted = [](auto change) {
    return on_ranks(2, [&](auto& world) {
      auto trainer = make_trainer(small, optim::sgd{}, world);
      fit_options options{.steps = 3, .batch = 8, .micro_batches = 2};
      std::int64_t samples = 40;
      if (world.rank() == 1) change(options, samples);
      trainer.fit(curve(samples), options);
    });
  };
  auto const refused = [](std::string const& what) {
    return all(2, "trireme::trainer: fit(): " + what + "; call it with the same arguments on every rank");
  };
  CHECK(fitted([](auto& options, auto&) { options.batch = 16; }) == refused(".batch is 8 on rank 0 but 16 on rank 1"));
  CHECK(fitted([](auto& options, auto&) { options.micro_batches = 4; }) ==
        refused(".micro_batches is 2 on rank 0 but 4 on rank 1"));
  CHECK(fitted([](auto& options, auto&) { options.steps = 4; }) == refused(".steps is 3 on rank 0 but 4 on rank 1"));
  CHECK(fitted([](auto& options, auto&) { options.stop_after = 2; }) ==
        refused(".stop_after is -1 on rank 0 but 2 on rank 1"));
  CHECK(fitted([](auto&, auto& samples) { samples = 41; }) ==
        refused("the dataset is 40 samples of F32 (1) and F32 (1) on rank 0 but 41 samples of F32 (1) and F32 (1) on "
                "rank 1"));
  CHECK(fitted([](auto&, auto&) {}) == all(2, ""));
  CHECK(on_ranks(2,
                 [](auto& world) {
                   auto trainer = make_trainer(small, optim::sgd{}, world, parallel::zero<3>{});
                   trainer.initialise(static_cast<std::uint64_t>(world.rank()));
                 }) == all(2,
                           "trireme::trainer: the seed is 0 on rank 0 but 1 on rank 1; call initialise() with the same "
                           "one on every rank"));
}

TEST_CASE("ranks with different rounding or flushing modes are detected", "[train][agreement]") {
  watchdog const guard("arithmetic");
  std::string const remedy =
      "; set rounding and denormal numbers equally on every rank (fesetround, _MM_SET_FLUSH_ZERO_MODE, "
      "torch::set_flush_denormal, or a program linked with -ffast-math)";
  std::string const here = "the processor's arithmetic is rounding to nearest, denormal numbers kept on rank 0 but ";
  // Ranks    are threads here, and a thread's mode ends with it.
  CHECK(on_ranks(3, [](auto& world) {
          if (world.rank() == 2) std::fesetround(FE_DOWNWARD);
          static_cast<void>(make_trainer(small, optim::sgd{}, world));
        }) == all(3, "trireme::trainer: " + here + "rounding down, denormal numbers kept on rank 2" + remedy));
  CHECK(on_ranks(2,
                 [](auto& world) {
                   auto trainer = make_trainer(small, optim::sgd{}, world);
                   if (world.rank() == 1) std::fesetround(FE_TOWARDZERO);
                   trainer.fit(curve(40), {.steps = 3, .batch = 8});
                 }) ==
        all(2, "trireme::trainer: fit(): " + here + "rounding towards zero, denormal numbers kept on rank 1" + remedy));
#if defined(__SSE2__)
  CHECK(on_ranks(2, [](auto& world) {
          if (world.rank() == 1) _mm_setcsr(_mm_getcsr() | 0x8040U);  // what a program linked with -ffast-math does
          std::vector<float> values(4), gradients(4);
          std::vector<foreign_parameter<float>> list{{"w", tensor_view{values}, tensor_view{gradients}}};
          static_cast<void>(make_exchange(list, world));
        }) == all(2, "trireme::exchange: " + here + "rounding to nearest, denormal numbers zero on rank 1" + remedy));
#endif
  // A mode that all ranks share is allowed.
  CHECK(on_ranks(2, [](auto& world) {
          std::fesetround(FE_UPWARD);
          auto trainer = make_trainer(small, optim::sgd{}, world);
          trainer.fit(curve(40), {.steps = 3, .batch = 8});
        }) == all(2, ""));
}

TEST_CASE("ranks may have different samples, and different numbers of them", "[train][agreement]") {
  CHECK(on_ranks(3, [](auto& world) {
          auto trainer = make_trainer(small, optim::sgd{}, world);
          std::vector<float> const mine(static_cast<std::size_t>(world.rank()), 0.5F);
          trainer.step(mine, mine);
          static_cast<void>(trainer.evaluate(curve(7 + world.rank())));
        }) == all(3, ""));
}

TEST_CASE("fit() without a step reports that, except in a run that was loaded at its end", "[train]") {
  watchdog const guard("no step");
  scratch folder;
  comm::self_world world;
  auto const data = curve(40);
  auto trainer = make_trainer(small, optim::sgd{}, world);
  auto const fit = [&](fit_options const& options) { return [&, options] { trainer.fit(data, options); }; };
  CHECK(sentence_of<config_error>(fit({})) == "trireme::trainer: fit() with .steps = 0; say how many steps to train");
  CHECK(trainer.fit(data, {.steps = 5, .batch = 8}).steps == 5);
  std::string const end =
      " takes no step after the 5 that have been taken: .steps and .stop_after count from the very first step; raise "
      "them, or call initialise() to start over";
  CHECK(sentence_of<config_error>(fit({.steps = 5, .batch = 8})) == "trireme::trainer: fit() to step 5" + end);
  CHECK(sentence_of<config_error>(fit({.steps = 9, .batch = 8, .stop_after = 4})) ==
        "trireme::trainer: fit() to step 4" + end);
  trainer.save(folder.path());
  trainer.initialise(0);
  CHECK(trainer.fit(data, {.steps = 2, .batch = 8}).steps == 2);
  trainer.load(folder.path());
  auto const again = trainer.fit(data, {.steps = 5, .batch = 8});  // a job that was restarted after its end
  CHECK(again.steps == 0);
  CHECK(std::isnan(again.first_loss));
  CHECK(std::isnan(again.last_loss));
  CHECK(sentence_of<config_error>(fit({})) != "");
  CHECK(trainer.fit(data, {.steps = 6, .batch = 8}).steps == 1);
  CHECK(sentence_of<config_error>(fit({.steps = 6, .batch = 8})) != "");
}

TEST_CASE("the state's hash detects replicas that were changed, and broadcast() makes them equal",
          "[train][agreement]") {
  watchdog dog("copies");
  auto const spoil = [](auto& trainer, auto const& name, float by) {
    auto& exchange = trainer.exchange();
    for (auto const& entry : exchange.plan().entries()) {
      if (entry.info.name != name) continue;
      auto& first = exchange.parameter_values(entry)[0];
      first = std::remove_cvref_t<decltype(first)>(static_cast<float>(first) + by);
    }
  };
  auto const check = [&](int ranks, std::string const& name, auto... policies) {
    dog.now(name);
    INFO(name);
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(ranks));
    auto const said = on_ranks(ranks, [&](auto& world) {
      auto trainer = make_trainer(toy::gpt, toy::adaptive, world, policies...);
      trainer.fit(toy::text{}, {.steps = 2, .batch = 8, .micro_batches = 4});
      auto const before = trainer.state_hash();
      if (world.rank() == ranks - 1) spoil(trainer, name, 1);
      auto const sentence = sentence_of<numeric_error>([&] { static_cast<void>(trainer.state_hash()); });
      auto const expected =
          text("trireme::trainer: the cop");  // followed by "y" or "ies", depending on whether other ranks agree
      if (!sentence.starts_with(expected) || sentence.find(name) == std::string::npos ||
          sentence.find(text(ranks - 1)) == std::string::npos)
        throw error("said \"" + sentence + "\"");
      trainer.broadcast();
      hashes[static_cast<std::size_t>(world.rank())] = trainer.state_hash();
      if (hashes[static_cast<std::size_t>(world.rank())] != before) throw error("not the first rank's parameters");
    });
    CHECK(said == all(ranks, ""));
  };
  check(2, "transformer.h.0.mlp.c_fc.weight");
  check(3, "transformer.h.0.mlp.c_fc.weight", precision::bf16{});
  check(2, "transformer.ln_f.weight", parallel::zero<1>{});
  check(3, "transformer.ln_f.weight", parallel::mesh{parallel::tensor{.ways = 3}});
  check(2, "transformer.wte.weight", parallel::mesh{parallel::pipeline<schedule::one_f_one_b>{.stages = 2}});
}

TEST_CASE("broadcast() copies values that were set by hand on rank 0 to all ranks", "[train][agreement]") {
  auto const set = [](auto... policies) {
    return on_ranks(2, [&](auto& world) {
      auto trainer = make_trainer(small, optim::sgd{}, world, policies...);
      auto const& entry = trainer.exchange().plan().at(0);
      if (world.rank() == 0) trainer.exchange().parameter_values(entry)[1] = 0.25F;
      trainer.broadcast();
      if (trainer.exchange().parameter_values(entry)[1] != 0.25F) throw error("not what was set");
      static_cast<void>(trainer.state_hash());
    });
  };
  CHECK(set() == all(2, ""));
  CHECK(set(parallel::zero<1>{}) == all(2, ""));
}

TEST_CASE("a step that throws on every rank may be followed by another one", "[train][agreement]") {
  auto const recovers = [](auto strategy) {
    return on_ranks(2, [&](auto& world) {
      auto trainer = make_trainer(small, optim::sgd{}, world, strategy);
      std::vector<float> const x{0.1F, 0.2F};
      std::vector<float> const wide{0.1F, 0.2F, 0.3F, 0.4F};
      auto const sentence = sentence_of<config_error>([&] {
        trainer.step(tensor_view(x), tensor_view<float const>(wide.data(), shape{2, 2}));
      });
      if (sentence !=
          "trireme::nn::loss: targets of shape (2, 2) for outputs of shape (2, 1); give each sample as many targets as "
          "the model has outputs")
        throw error(sentence);
      if (trainer.step(x, x).skipped) throw error("skipped");
    });
  };
  CHECK(recovers(parallel::data{}) == all(2, ""));
  CHECK(recovers(parallel::zero<1>{}) == all(2, ""));
  CHECK(recovers(parallel::zero<2>{}) == all(2, ""));
  CHECK(recovers(parallel::zero<3>{}) == all(2, ""));
}

namespace {

std::string const went_on =
    "trireme::trainer: fit() on 114 samples of F32 (1) and F32 (1), but the current epoch is of 80 samples of F32 (1) "
    "and F32 (1), after 46 of them: some samples would be used twice and others never; pass that dataset, or call "
    "start_epoch() first to skip the rest of that epoch";

}  // namespace

TEST_CASE("an epoch continues only with the dataset that it began with; start_epoch() begins the next one",
          "[train][checkpoint]") {
  watchdog const guard("another dataset");
  scratch folder, ordered;
  auto const until = [](std::int64_t steps) { return fit_options{.steps = steps, .batch = 23}; };
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(small, optim::sgd{}, world);
    trainer.fit(curve(80), until(2));
    trainer.save(folder.path());
    auto const hash = trainer.state_hash();
    auto const refuses = [&](auto& it, auto const& data) {
      return sentence_of<config_error>([&] { it.fit(data, until(8)); });
    };
    auto again = make_any_trainer(small, optim::sgd{}, world, parallel::zero<1>{});
    again->load(folder.path());
    if (again->state_hash() != hash) throw error("another state");
    if (refuses(*again, curve(114)) != went_on) throw error(refuses(*again, curve(114)));
    if (refuses(trainer, curve(114)) != went_on) throw error("the run that was saved goes on with other data");
    if (!contains(refuses(*again, curve(46)), "fit() on 46 samples")) throw error("a smaller one is accepted");
    std::vector<float> const wide(80 * 2), one(80);
    data::in_memory const shaped(wide, one, {.inputs = 2, .targets = 1});
    if (!contains(refuses(*again, shaped), "fit() on 80 samples of F32 (2)")) throw error("another shape is accepted");
    if (again->steps() != 2 || again->state_hash() != hash) throw error("a refusal has changed the state");
    again->fit(curve(80), until(4));  // another batch would work, too; this ends the epoch
    again->fit(curve(114), until(5));
    again->load(folder.path());
    again->start_epoch();
    again->start_epoch();  // it is at the beginning of one already
    again->fit(curve(114), until(3));
    if (!contains(refuses(*again, curve(80)), "after 23 of them")) throw error("the new dataset is not known");
    trainer.initialise(1);
    trainer.fit(curve(46), until(1));
    trainer.initialise(2);  // and only in the same order
    auto nearby = until(2);
    nearby.locality = data::blocks{.bytes = 40, .window = 2};
    trainer.fit(curve(80), nearby);
    trainer.save(ordered.path());
    again->load(ordered.path());
    if (!contains(refuses(*again, curve(80)), "(1) in trireme::data::blocks{.bytes = 40, .window = 2}, after 46"))
      throw error("another order is accepted");
    nearby.steps = 4;
    again->fit(curve(80), nearby);
    trainer.fit(curve(80), nearby);
    if (again->state_hash() != trainer.state_hash()) throw error("a run that is resumed sees other samples");
  });
}

TEST_CASE("comparing copies and naming tensors takes as few collectives on 64 ranks as on 2", "[train][agreement]") {
  watchdog const guard("collectives of a comparison");
  for (int const ranks : {2, 3, 5, 8, 16, 33, 64}) {
    INFO(ranks << " ranks");
    launch(comm::threads{.ranks = ranks, .deadline = std::chrono::seconds(60)}, [&](auto& world) {
      auto trainer = make_trainer(small, optim::sgd{}, world);
      auto const calls_of = [&](auto&& call) {
        auto const before = world.traffic().collectives;
        call();
        return world.traffic().collectives - before;
      };
      auto const hash = [&] { static_cast<void>(trainer.state_hash()); };
      auto const first = calls_of(hash), later = calls_of(hash);
      auto const named = calls_of([&] { trainer.for_each_parameter([](auto const&, auto const&, auto) {}); });
      // A hash takes one comparison and one sum; before that, once, which rank keeps what. Tensors: the list of them,
      // then each.
      if (first > 6 || later != 2 || named > 2 + 4)
        throw numeric_error(text(first, ", ", later, " and ", named, " collectives"), {world.rank(), "count"});
    });
  }
}
