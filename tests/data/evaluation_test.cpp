#include "trireme/data/evaluation.hpp"

#include <cstdint>
#include <iterator>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "../catch.hpp"
#include "trireme/data/function.hpp"

using namespace trireme;

namespace {
struct square {
  float operator()(float x) const { return x * x; }
};
using squares = data::function<square>;
using batches = data::evaluation_batches<squares>;
}  // namespace

TEST_CASE("evaluation sees every sample once, in order, on every world size", "[data][evaluation]") {
  static_assert(std::input_iterator<batches::iterator>);
  for (std::int64_t count : {1, 2, 10, 11, 16}) {
    squares const data(square{}, {.samples = count});
    for (std::int64_t batch : {1, 3, 4, 100}) {
      std::vector<std::vector<std::int64_t>> alone;
      for (int size : {1, 2, 3, 7}) {
        CAPTURE(count, batch, size);
        std::int64_t next = 0;
        std::int64_t number = 0;
        std::vector<std::vector<std::int64_t>> all;
        for (int rank = 0; rank < size; ++rank) {
          batches mine(data, batch, rank, size);
          CHECK(mine.batches().first == number);
          for (auto const& part : mine) {
            auto const x = part.inputs.as<float>();
            auto const y = part.targets.as<float>();
            REQUIRE(x.extents() == shape{part.count(), 1});
            for (std::int64_t i = 0; i < part.count(); ++i) {
              REQUIRE(part.ids[static_cast<std::size_t>(i)] == next);
              REQUIRE(x[i] == data.input(next));
              REQUIRE(y[i] == x[i] * x[i]);
              ++next;
            }
            all.emplace_back(part.ids.begin(), part.ids.end());
            ++number;
          }
          CHECK(mine.batches().end() == number);
        }
        CHECK(next == count);
        if (size == 1) alone = all;
        CHECK(all == alone);
      }
    }
  }
}

TEST_CASE("an evaluation can be run again", "[data][evaluation]") {
  squares const data(square{}, {.samples = 5});
  batches all(data, 2);
  for (int round = 0; round < 2; ++round) {
    std::int64_t seen = 0;
    for (auto const& part : all) seen += part.count();
    CHECK(seen == 5);
  }
}

TEST_CASE("an error of reading in an evaluation is thrown, or kept until the end", "[data][evaluation]") {
  struct with_a_hole : squares {
    void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
      if (ids[0] == 2) throw std::runtime_error("sample 2 cannot be read");
      squares::read(ids, inputs, targets);
    }
  };
  with_a_hole const data{squares(square{}, {.samples = 6, .low = 1, .high = 2})};
  data::evaluation_batches throwing(data, 1);
  CHECK_THROWS_WITH(
      [&] {
        for (auto const& part : throwing) CHECK(part.count() == 1);
      }(),
      "sample 2 cannot be read");
  data::evaluation_batches keeping(data, 1);
  keeping.keep_failure();
  std::int64_t number = 0;
  for (auto const& part : keeping) {
    CHECK(part.ids[0] == number);
    CHECK((part.inputs.as<float>()[0] == 0) == (number >= 2));
    CHECK((keeping.failure() == nullptr) == (number++ < 2));
  }
  CHECK(number == 6);
}

TEST_CASE("impossible evaluations are refused by name", "[data][evaluation]") {
  squares const data(square{}, {.samples = 5});
  CHECK_THROWS_WITH(batches(data, 0),
                    "trireme::data::evaluation_batches: a batch of 0 samples: at least one is needed");
  CHECK_THROWS_WITH(batches(data, 1, 3, 3), "trireme::data::evaluation_batches: there is no rank 3 of 3");
  CHECK_THROWS_AS(batches(data, 1, -1, 3), config_error);
  CHECK_THROWS_AS(batches(data, 1, 0, 0), config_error);
  static_assert(!std::is_constructible_v<batches, squares, std::int64_t>);  // a temporary would dangle
}
