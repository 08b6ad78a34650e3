// test-timeout: 300
#include "sign.hpp"

#include "../compression/compressed_training.hpp"
#include "../support/policy_cases.hpp"
#include "../watchdog.hpp"

// A user's compressor; the same over MPI: users_mpi_test.cpp.

using namespace trireme;

TEST_CASE("a user's sign compressor learns with one bit a gradient, and resumes bit for bit", "[policies]") {
  watchdog const watch("sign compressor", std::chrono::seconds(240));
  for (int const ranks : {1, 2, 4}) {
    std::vector<std::string> found(static_cast<std::size_t>(ranks));
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      parallel::data const small{.bucket_bytes = 4096};
      auto& mine = found[static_cast<std::size_t>(world.rank())];
      mine = compressed::learns(world, 0.5, small, user::sign{}) + compressed::resumes(world, small, user::sign{}) +
             compressed::resumes(world, parallel::zero<1>{.bucket_bytes = 4096}, user::sign{});
    });
    CHECK(found == std::vector<std::string>(found.size()));
  }
}

TEST_CASE(
    "bytes and memory of a user's sign compressor equal the plan, and it resumes on the same number of ranks only",
    "[policies]") {
  watchdog const watch("plan of a sign compressor");
  optim::adamw const adaptive{.learning_rate = 1e-2};
  for (int const ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    CHECK(policy_cases::on_mlp.holds_by_threads(ranks, 0.7, adaptive, user::sign{}) == "");
  }
  CHECK(contains(policy_cases::on_mlp.moves({2, 3}, adaptive, user::sign{}),
                 "numbers that belong to each of 2 ranks, and this run has 3"));
}

TEST_CASE("a user's sign compressor sends one bit a gradient and a number a tensor", "[policies]") {
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    std::vector<float> values(8000), gradients(8000, 1.0F);
    auto exchange = make_exchange(
        std::vector{foreign_parameter<float>{"w", tensor_view<float>(values), tensor_view<float>(gradients)}}, world,
        user::sign{});
    exchange.begin();
    exchange.ready("w");
    auto const before = world.traffic().bytes_sent;
    exchange.finish();
    auto const sent = world.traffic().bytes_sent - before;
    bool const few = sent < 8000 / 8 + 4 + 2048;  // the vote
    bool const right = gradients[0] == 1 && gradients[7999] == 1;
    if (world.rank() == 0) CHECK((few && right));
  });
}
