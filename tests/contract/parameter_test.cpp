#include "trireme/contract/parameter.hpp"

#include <cstdint>
#include <vector>

#include "../catch.hpp"

using namespace trireme;

namespace {

struct run {
  std::int64_t whole;
  std::int64_t part;
  std::int64_t count;
  friend bool operator==(run const&, run const&) = default;
};
std::vector<run> runs(parameter_info const& part, std::int64_t first, std::int64_t count) {
  std::vector<run> all;
  for_each_run(part, first, count, [&](auto whole, auto here, auto n) { all.push_back({whole, here, n}); });
  return all;
}

/// Where each element of a box lies in the whole, by the definition of row-major.
std::vector<std::int64_t> places(parameter_info const& box) {
  std::vector<std::int64_t> all;
  for (std::int64_t at = 0; at < box.extents.size(); ++at) {
    std::int64_t place = 0;
    std::int64_t rest = at;
    std::int64_t stride = 1;
    for (int axis = box.extents.rank() - 1; axis >= 0; --axis) {
      place += (box.first[axis] + rest % box.extents[axis]) * stride;
      rest /= box.extents[axis];
      stride *= box.whole[axis];
    }
    all.push_back(place);
  }
  return all;
}

}  // namespace

TEST_CASE("shares are consecutive, cover all, and differ by one at most", "[contract]") {
  for (std::int64_t const n : {0, 1, 6, 7, 259}) {
    for (int const size : {1, 2, 3, 4, 8}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        auto const range = group_rank{rank, size}.of(n);
        CHECK(range.first == next);
        CHECK((range.count == n / size || (range.count == n / size + 1 && rank < n % size)));
        next += range.count;
      }
      CHECK(next == n);
    }
  }
}

TEST_CASE("a part's elements are in row-major order, in as few contiguous runs as possible", "[contract]") {
  parameter_info const whole{"t", {3, 4, 5}};
  CHECK(runs(whole, 7, 20) == std::vector<run>{{7, 7, 20}});
  CHECK(runs(shard_of(whole, 0, {1, 2}), 3, 30) == std::vector<run>{{23, 3, 30}});
  CHECK(runs(shard_of(whole, 1, {1, 2}), 0, 30) == std::vector<run>{{5, 0, 10}, {25, 10, 10}, {45, 20, 10}});
  CHECK(runs(shard_of(whole, 2, {0, 5}), 2, 50) == std::vector<run>{{2, 2, 50}});
  CHECK(runs(shard_of(whole, 2, {3, 2}), 1, 4) == std::vector<run>{{4, 1, 1}, {8, 2, 2}, {13, 4, 1}});
  for (int axis = 0; axis < 3; ++axis) {
    for (std::int64_t begin = 0; begin < whole.extents[axis]; ++begin) {
      for (std::int64_t n = 1; begin + n <= whole.extents[axis]; ++n) {
        auto box = shard_of(whole, axis, {begin, n});
        if (axis == 2) {  // cut along another axis too
          box.extents = {2, 4, n};
          box.first = {1, 0, begin};
        }
        auto const expected = places(box);
        for (std::int64_t first = 0; first < box.extents.size(); first += 3) {
          std::vector<std::int64_t> got;
          std::int64_t next = first;
          for (auto const& each : runs(box, first, box.extents.size() - first)) {
            REQUIRE(each.part == next);
            next += each.count;
            for (std::int64_t i = 0; i < each.count; ++i) got.push_back(each.whole + i);
          }
          REQUIRE(got == std::vector<std::int64_t>(expected.begin() + first, expected.end()));
        }
      }
    }
  }
}
