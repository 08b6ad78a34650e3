// test-sanitize: thread
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "../support/training.hpp"
#include "trireme/core/hash.hpp"

using namespace trireme;

TEST_CASE("data on 1 to 4 ranks equals serial training, in weights, norms and losses", "[parallel]") {
  auto const serial = toy::twelve_steps.alone(toy::steady);
  REQUIRE(serial.losses.size() == 12);
  REQUIRE(serial.losses.back() < serial.losses.front());
  for (int const ranks : {1, 2, 3, 4}) {
    INFO("ranks " << ranks);
    auto const data = toy::twelve_steps.on(ranks, toy::steady, parallel::data{.bucket_bytes = 8192}).back();
    CHECK(toy::distance(serial.weights, data.weights) < 1e-5);
    toy::check_near(data, serial, 1e-5, 1e-5);
  }
}

TEST_CASE("zero<1> equals data bit for bit, and both follow serial training with adamw", "[parallel]") {
  auto const serial = toy::twelve_steps.alone(toy::adaptive);
  for (int const ranks : {1, 2, 3, 4}) {
    INFO("ranks " << ranks);
    auto const data = toy::twelve_steps.on(ranks, toy::adaptive, parallel::data{.bucket_bytes = 8192}).back();
    auto const zero = toy::twelve_steps.on(ranks, toy::adaptive, parallel::zero<1>{.bucket_bytes = 8192}).back();
    CHECK(toy::distance(serial.losses, data.losses) < 1e-4);
    CHECK(toy::distance(serial.norms, data.norms) < 1e-3);
    toy::check_equal(zero, data);
  }
}

TEST_CASE("bfloat16 with master weights follows fp32 within its tolerance, the same for every strategy", "[parallel]") {
  auto const serial = toy::twelve_steps.alone(toy::steady);
  for (int const ranks : {1, 2, 3}) {
    INFO("ranks " << ranks);
    auto const data = toy::twelve_steps.on(ranks, toy::steady, precision::bf16{}).back();
    auto const zero = toy::twelve_steps.on(ranks, toy::steady, parallel::zero<1>{}, precision::bf16{}).back();
    toy::check_equal(zero, data);
    CHECK(toy::distance(serial.losses, data.losses) < precision::bf16::tolerance);
  }
}

namespace {

/// The text, from a slow disk: with a different delay for each rank and read.
struct late_text : toy::text {
  std::uint64_t seed = 0;
  mutable std::uint64_t reads = 0;
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    std::this_thread::sleep_for(std::chrono::microseconds(mix(seed + reads++) % 1500));
    text::read(ids, inputs, targets);
  }
};

/// @returns the state's hash on ranks that are late, each at other times.
template <class Parallel>
std::uint64_t train_late(int ranks, std::uint64_t seed, Parallel const& parallel) {
  std::uint64_t hash = 0;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto const own = mix(seed * 64 + static_cast<std::uint64_t>(world.rank()));
    auto trainer = make_trainer(toy::gpt, toy::adaptive, world, parallel);
    trainer.initialise(7);
    trainer.on_step([&](step_report const& done) {
      std::this_thread::sleep_for(std::chrono::microseconds(mix(own ^ static_cast<std::uint64_t>(done.step)) % 3000));
    });
    late_text slow;
    slow.seed = own;
    trainer.fit(slow, toy::twelve_steps.schedule);
    auto const mine = trainer.state_hash();
    if (world.rank() == 0) hash = mine;
  });
  return hash;
}

}  // namespace

TEST_CASE("a run does not depend on when ranks reach a collective", "[parallel]") {
  for (int const ranks : {2, 3}) {
    auto const once = toy::twelve_steps.on(ranks, toy::adaptive, parallel::zero<1>{.bucket_bytes = 8192}).back();
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CHECK(train_late(ranks, seed, parallel::zero<1>{.bucket_bytes = 8192}) == once.hash);
      CHECK(train_late(ranks, seed, parallel::data{.bucket_bytes = 8192}) == once.hash);
    }
  }
}

TEST_CASE("zero<1> fuses the reduction into the update if the norm is not needed", "[parallel]") {
  for (int const ranks : {1, 2, 3}) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      std::vector<std::uint64_t> hashes;
      for (bool const want_norm : {true, false}) {
        using env = environment<precision::fp32>;
        staged_engine<env> engine(toy::gpt);
        basic_exchange<env, comm::threads_world, parallel::zero<1>, compression::none> exchange(
            engine.uses(), world, parallel::zero<1>{.bucket_bytes = 4096}, compression::none{});
        static_assert(decltype(exchange)::sums_type::reads_peers);
        exchange.initialise(3);
        optimizer_state<env, optim::adamw> moments(exchange);
        toy::text const text;
        data::loader loader(text, data::loader_options{.batch = 9, .micro_batches = 3}, world.rank(), world.size());
        for (int step = 0; step < 3; ++step) {
          auto const& batch = loader.next();
          exchange.begin();
          for (auto const& part : batch.micro_batches) {
            bool const last = &part == &batch.micro_batches.back();
            engine.train(part, 1.0 / 9, {3, static_cast<std::uint64_t>(step)}, [&](int use) {
              if (last) exchange.ready(use);
            });
          }
          auto const result = exchange.finish(0, want_norm);
          if (world.rank() == 0) {
            CHECK(result.finite);
            CHECK(std::isnan(result.norm) == !want_norm);
          }
          moments.update(exchange, optim::adamw{}, step, 1.0);
          exchange.publish();
        }
        hashes.push_back(exchange.hash_of_parameters());
      }
      if (world.rank() == 0) CHECK(hashes[0] == hashes[1]);
    });
  }
}
