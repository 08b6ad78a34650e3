#include "trireme/parallel/exchange.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "exchange_cases.hpp"
#include "trireme/comm/comm.hpp"

using namespace trireme;

TEST_CASE("an exchange of one's own parameters means, publishes, votes and compares", "[parallel][exchange]") {
  for (int const ranks : {1, 2, 3}) {
    std::vector<std::vector<std::string>> found(static_cast<std::size_t>(ranks));
    launch(comm::threads{.ranks = ranks},
           [&](auto& world) { found[static_cast<std::size_t>(world.rank())] = exchange_cases::all(world); });
    for (auto const& rank : found) CHECK(rank == std::vector<std::string>(rank.size()));
  }
}

TEST_CASE("an exchange refuses what it cannot carry out, in one sentence", "[parallel][exchange]") {
  comm::self_world world;
  std::vector<float> value(4);
  std::vector<float> gradient(4);
  std::vector<float> shorter(3);
  auto const of = [&](std::vector<foreign_parameter<float>> list, std::int64_t bytes = 4096) {
    return [&world, list, bytes] { make_exchange(list, world, parallel::data{.bucket_bytes = bytes}).ready("b"); };
  };
  foreign_parameter<float> const a{"a", tensor_view{value}, tensor_view{gradient}};
  foreign_parameter<float> const torn{"a", tensor_view{value}, tensor_view{shorter}};
  CHECK_THROWS_WITH(of({a})(), "trireme::exchange: there is no parameter \"b\"");
  CHECK_THROWS_WITH(of({a, a})(), "trireme::exchange: two parameters are named \"a\"");
  CHECK_THROWS_WITH(of({torn})(), "trireme::exchange: parameter \"a\" has 4 values but 3 gradients");
  CHECK_THROWS_WITH(of({a}, 3)(), "trireme::exchange: bucket_bytes is 3; it must hold a gradient");
  CHECK_THROWS_WITH(of({})(), "trireme::exchange: the model has no parameters");
}
