#include "trireme/core/plural.hpp"

#include <cstdint>
#include <vector>

#include "../catch.hpp"

using namespace trireme;

TEST_CASE("numbers are written with the right plural", "[core][plural]") {
  CHECK(how_many(1, "rank") == "1 rank");
  CHECK(how_many(0, "rank") == "0 ranks");
  CHECK(how_many(-1, "rank") == "-1 ranks");
  CHECK(how_many(std::uint64_t{2}, "class") == "2 classes");
  CHECK(how_many(3, "micro-batch") == "3 micro-batches");
  CHECK(how_many(4, "query") == "4 queries");
  CHECK(how_many(5, "key") == "5 keys");
  CHECK(agreeing(1, "has", "have") == "has");
  CHECK(agreeing(std::size_t{0}, "has", "have") == "have");
  CHECK(list_of("rank", std::vector{1}) == "rank 1");
  CHECK(list_of("rank", std::vector{1, 3}) == "ranks 1, 3");
  CHECK(list_of("rank", std::vector<int>{}).empty());
}
