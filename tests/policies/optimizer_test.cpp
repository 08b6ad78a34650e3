// test-sanitize: none
#include "whitened.hpp"

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../watchdog.hpp"

// A user's optimizer with a matrix for each tensor; the same over MPI: users_mpi_test.cpp.

using namespace trireme;

TEST_CASE("a user's optimizer with a matrix state trains, resumes bit for bit, also on other ranks", "[policies]") {
  watchdog const guard("whitened");
  user::whitened const optimizer{.learning_rate = 1e-2};
  for (int const ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    CHECK(policy_cases::on_mlp.holds_by_threads(ranks, 0.7, optimizer) == "");
    CHECK(policy_cases::on_mlp.holds_by_threads(ranks, 0.7, optimizer, parallel::zero<2>{.bucket_bytes = 4096}) == "");
  }
  parallel::zero<2> const sharded{.bucket_bytes = 4096};
  CHECK(policy_cases::on_mlp.moves({2, 3}, optimizer, sharded) == "");
  CHECK(policy_cases::on_mlp.moves({4, 1}, optimizer, sharded) == "");
}

TEST_CASE("a user's optimizer makes the rows of a gradient independent", "[policies]") {
  // Where two rows are nearly the same, what they have in common is stepped along once, not twice.
  using env = environment<precision::fp64>;
  parameter_info info;
  info.name = "w";
  info.extents = {2, 3};
  std::vector<double> value(6), gradient{1, 2, -1, 1, 2, -1.5}, covariance(4);
  std::vector<tensor_view<double>> const moments{{covariance.data(), {2, 2}}};
  arena<host> scratch;
  user::whitened const optimizer{.learning_rate = 1, .memory = 0};
  optimizer.update(
      tensor_update<env>{info, {value.data(), info.extents}, moments, {gradient.data(), info.extents}, 1, {}, scratch},
      0);
  CHECK(covariance[0] == Approx(2));
  CHECK(covariance[1] == covariance[2]);
  double overlap = 0, first = 0, second = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    overlap += value[i] * value[3 + i];
    first += value[i] * value[i];
    second += value[3 + i] * value[3 + i];
  }
  CHECK(std::abs(overlap) < 0.6 * std::sqrt(first * second));  // from 0.98
}
