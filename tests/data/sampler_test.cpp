#include "trireme/data/sampler.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "../catch.hpp"

using trireme::data::sampler;

namespace {

std::vector<std::int64_t> order(sampler const& s, std::uint64_t epoch) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(s.samples));
  for (std::int64_t i = 0; i < s.samples; ++i) ids[static_cast<std::size_t>(i)] = s.id(epoch, i);
  return ids;
}

bool permutation(std::vector<std::int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("every id comes exactly once in an epoch, for every size from 1 to 600", "[data][sampler]") {
  for (std::int64_t n = 1; n <= 600; ++n) {
    for (std::uint64_t epoch : {0, 1}) {
      CAPTURE(n, epoch);
      REQUIRE(permutation(order({.samples = n, .seed = 7}, epoch)));
    }
  }
}

TEST_CASE("every id comes exactly once in an epoch, for large sizes near squares and powers of two",
          "[data][sampler]") {
  for (std::int64_t n : {1023, 1024, 1025, 65535, 65536, 65537, 99856, 99857, 100000}) {
    CAPTURE(n);
    REQUIRE(permutation(order({.samples = n, .seed = 123456789012345ULL}, 3)));
  }
}

TEST_CASE("ids stay in range for sizes beyond 32 and near 62 bits", "[data][sampler]") {
  for (std::int64_t n : {(std::int64_t{1} << 33) + 1, (std::int64_t{1} << 53) + 1, (std::int64_t{1} << 62) - 3}) {
    sampler const s{.samples = n, .seed = 1};
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 2000; ++i) {
      for (auto const position : {i, n - 1 - i}) {
        auto const id = s.id(0, position);
        REQUIRE(id >= 0);
        REQUIRE(id < n);
        seen.insert(id);
      }
    }
    REQUIRE(seen.size() == 4000);
  }
}

TEST_CASE("epochs and seeds give different orders, and the same ones again", "[data][sampler]") {
  sampler const s{.samples = 1000, .seed = 5};
  CHECK(order(s, 0) == order({.samples = 1000, .seed = 5}, 0));
  CHECK(order(s, 0) != order(s, 1));
  CHECK(order(s, 0) != order({.samples = 1000, .seed = 6}, 0));
  std::vector<std::int64_t> in_order(1000);
  std::iota(in_order.begin(), in_order.end(), 0);
  CHECK(order(s, 0) != in_order);
  // Checkpoints depend on the order: with another method a run would be resumed with other samples.
  CHECK(order({.samples = 10, .seed = 0}, 0) == std::vector<std::int64_t>{0, 7, 1, 8, 9, 6, 4, 3, 2, 5});
  CHECK(order({.samples = 10, .seed = 0}, 1) == std::vector<std::int64_t>{1, 0, 9, 2, 7, 4, 3, 6, 8, 5});
}

TEST_CASE("at every position all ids are about equally likely over epochs", "[data][sampler]") {
  for (std::int64_t n : {2, 3, 5, 7, 12}) {
    sampler const s{.samples = n, .seed = 11};
    constexpr int epochs = 6000;
    for (std::int64_t position = 0; position < n; ++position) {
      std::map<std::int64_t, int> times;
      for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) ++times[s.id(epoch, position)];
      double chi_squared = 0;
      double const expected = static_cast<double>(epochs) / static_cast<double>(n);
      for (std::int64_t id = 0; id < n; ++id) chi_squared += (times[id] - expected) * (times[id] - expected) / expected;
      CAPTURE(n, position, chi_squared);
      CHECK(chi_squared < 45);  // at most 11 degrees of freedom: larger values are not chance (p < 1e-5)
    }
  }
}

TEST_CASE("neighbours in the order are not neighbours in the data", "[data][sampler]") {
  auto const ids = order({.samples = 10000, .seed = 2}, 0);
  double mean_step = 0;
  int adjacent = 0;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    auto const step = std::abs(ids[i] - ids[i - 1]);
    mean_step += static_cast<double>(step) / 9999.0;
    adjacent += step == 1 ? 1 : 0;
  }
  CHECK(mean_step == Approx(10000.0 / 3).epsilon(0.03));
  CHECK(adjacent < 12);  // two are expected
}

TEST_CASE("with blocks every id comes exactly once in an epoch", "[data][sampler]") {
  for (std::int64_t n = 1; n <= 60; ++n) {
    for (std::int64_t block : {1, 2, 3, 7, 59, 60, 1000}) {
      for (std::int64_t window : {1, 2, 3, 5, 100}) {
        for (std::uint64_t epoch : {0, 1, 2}) {
          CAPTURE(n, block, window, epoch);
          REQUIRE(permutation(order({.samples = n, .seed = 7, .block = block, .window = window}, epoch)));
        }
      }
    }
  }
  CHECK(permutation(order({.samples = 100003, .seed = 3, .block = 100, .window = 8}, 5)));
  CHECK(permutation(order({.samples = 100000, .seed = 3, .block = 100, .window = 8}, 5)));
}

TEST_CASE("with blocks a run reads from one window of blocks at a time, and mixes it", "[data][sampler]") {
  constexpr std::int64_t n = 10007, block = 100, window = 8;
  sampler const s{.samples = n, .seed = 5, .block = block, .window = window};
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    auto const ids = order(s, epoch);
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> used;  // the first and the last use of each block
    std::int64_t adjacent = 0;
    for (std::int64_t at = 0; at < n; ++at) {
      auto const of = ids[static_cast<std::size_t>(at)] / block;
      used.try_emplace(of, at, at).first->second.second = at;
      if (at > 0 && ids[static_cast<std::size_t>(at)] == ids[static_cast<std::size_t>(at) - 1] + 1) ++adjacent;
    }
    CHECK(adjacent < 40);  // 12 are expected
    CHECK(used.size() == 101);
    std::int64_t open = 0, most = 0;
    std::map<std::int64_t, std::int64_t> changes;
    for (auto const& [of, span] : used) ++changes[span.first], --changes[span.second + 1];
    for (auto const& [at, change] : changes) most = std::max(most, open += change);
    CHECK(most == window);
  }
  CHECK(order(s, 0) != order(s, 1));
  CHECK(order(s, 0) == order({.samples = n, .seed = 5, .block = block, .window = window}, 0));
}

TEST_CASE("with blocks all ids are about equally likely at every position", "[data][sampler]") {
  sampler const s{.samples = 8, .seed = 11, .block = 2, .window = 2};
  constexpr int epochs = 8000;
  for (std::int64_t position = 0; position < 8; ++position) {
    std::map<std::int64_t, int> times;
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) ++times[s.id(epoch, position)];
    double chi_squared = 0;
    for (std::int64_t id = 0; id < 8; ++id) chi_squared += (times[id] - 1000.0) * (times[id] - 1000.0) / 1000;
    CAPTURE(position, chi_squared);
    CHECK(chi_squared < 35);  // 7 degrees of freedom
  }
}

TEST_CASE("a sampler without samples is refused, and prints as its source", "[data][sampler]") {
  CHECK_THROWS_AS((sampler{.samples = 0}.validate()), trireme::config_error);
  CHECK_NOTHROW((sampler{.samples = 1}.validate()));
  CHECK_THROWS_AS((sampler{.samples = 1, .block = 2}.validate()), trireme::config_error);
  CHECK(to_string(sampler{.samples = 3, .seed = 4}) == "trireme::data::sampler{.samples = 3, .seed = 4}");
  CHECK(to_string(sampler{.samples = 3, .seed = 4, .block = 2, .window = 1}) ==
        "trireme::data::sampler{.samples = 3, .seed = 4, .block = 2, .window = 1}");
}
