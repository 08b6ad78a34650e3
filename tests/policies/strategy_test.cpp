// test-sanitize: none
#include "averaging.hpp"
#include "scaled.hpp"

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../watchdog.hpp"

// A user's parallel strategy and precision; the same over MPI: users_mpi_test.cpp.

using namespace trireme;

namespace {
optim::adamw const adaptive{.learning_rate = 1e-2};
}

TEST_CASE("a user's strategy that averages every few steps trains and resumes bit for bit", "[policies]") {
  watchdog const guard("averaging");
  for (int const ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    CHECK(policy_cases::on_mlp.holds_by_threads(ranks, 0.7, adaptive, user::averaging{}) == "");
  }
  CHECK(contains(policy_cases::on_mlp.moves({2, 3}, adaptive, user::averaging{}),
                 "is of 2 learners, and this run has 3"));
}

TEST_CASE("the counts of a user's strategy are saved", "[policies]") {
  watchdog const guard("averaging counts");
  launch(policy_cases::counting_threads(2), [](auto& world) {
    shared_scratch folder(world);
    auto trainer = make_trainer(policy_cases::on_mlp.model, world, adaptive, user::averaging{});
    trainer.fit(policy_cases::on_mlp.data, policy_cases::on_mlp.until(11));
    trainer.save(folder.path());
    auto again = make_trainer(policy_cases::on_mlp.model, world, adaptive, user::averaging{});
    again.load(folder.path());
    if (again.exchange().strategy().meetings() != 2) throw error("the number of meetings is not state");
    world.barrier();
  });
}

TEST_CASE("a user's precision with a running scale trains, resumes bit for bit, also on other ranks", "[policies]") {
  watchdog const guard("scaled");
  for (int const ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    CHECK(policy_cases::on_mlp.holds_by_threads(ranks, 0.7, adaptive, user::scaled{}) == "");
  }
  CHECK(policy_cases::on_mlp.moves({2, 3}, adaptive, user::scaled{}) == "");
}
