#include "trireme/parallel/vote.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "../catch.hpp"
#include "trireme/comm/comm.hpp"

using namespace trireme;

namespace {

/// The outcome of a vote in which each rank has one loss and one square.
exchange_result counted(std::vector<double> const& losses, std::vector<double> const& squares, std::int64_t wish = 0) {
  exchange_result out;
  launch(comm::threads{.ranks = static_cast<int>(losses.size())}, [&](auto& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    parallel::vote vote;
    for (int step = 0; step < 2; ++step) {  // the second is not the first one's sum
      vote.clear();
      vote.add({losses[rank], 2});
      vote.squares().add(squares[rank]);
      vote.wish(wish);
      auto const mine = vote.count(world);
      if (world.rank() == 0) out = mine;
    }
  });
  return out;
}

}  // namespace

TEST_CASE("a vote's loss and norm are exact, however the terms are distributed over ranks", "[parallel][vote]") {
  auto const a = counted({1e20, 1, -1e20, 0.1}, {9, 0, 7, 0}, 3);
  CHECK(a.loss == (1 + 0.1) / 8);
  CHECK(a.norm == 4);
  CHECK(a.finite);
  CHECK(a.votes == 12);
  auto const b = counted({0.1, -1e20, 1e20, 1}, {0, 7, 0, 9});
  CHECK(b.loss == a.loss);
  CHECK(b.norm == a.norm);
  for (double const loss : {0.0, 1e-60, -3.5, 1e60, 0x1p-240, 0x1.fffffffffffffp239})
    CHECK(counted({loss}, {1}).loss == loss / 2);
  CHECK(counted({1e-300, 2}, {0, 0}).loss == 0.5);
}

TEST_CASE("a vote reports non-finite losses and gradients separately, with the loss's own value", "[parallel][vote]") {
  auto const nan = std::nan("");
  auto const infinity = std::numeric_limits<double>::infinity();
  auto const loss_of = [](std::vector<double> const& losses) {
    auto const out = counted(losses, std::vector<double>(losses.size(), 9));
    CHECK(!out.finite_loss);
    CHECK(out.finite);
    CHECK(out.norm == std::sqrt(9 * static_cast<double>(losses.size())));
    return out.loss;
  };
  CHECK(std::isnan(loss_of({1, nan})));
  CHECK(std::isnan(loss_of({nan, infinity})));
  CHECK(std::isnan(loss_of({infinity, 1, -infinity})));
  CHECK(loss_of({1, infinity, infinity}) == infinity);
  CHECK(loss_of({-infinity, 1}) == -infinity);
  CHECK(loss_of({1e80}) == infinity);
  CHECK(counted({1, 2}, {0, 0}).finite_loss);
  for (double const bad : {nan, infinity}) {
    auto const out = counted({1, 3}, {4, bad});
    CHECK(out.loss == 1);
    CHECK(!out.finite);
    CHECK(std::isnan(out.norm));
  }
}

TEST_CASE("a vote without a norm returns NaN for it", "[parallel][vote]") {
  comm::self_world world;
  parallel::vote vote;
  vote.clear();
  vote.without_norm();
  CHECK(std::isnan(vote.count(world).norm));
  CHECK(vote.count(world).loss == 0);  // no rank has samples
}
