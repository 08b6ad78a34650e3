#include "trireme/contract/context_group.hpp"

#include <vector>

#include "../catch.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

TEST_CASE("parts of a context have each position once, in equal numbers") {
  for (bool const balanced : {false, true}) {
    for (int const size : {1, 2, 3, 5}) {
      std::int64_t const here = 6;
      std::vector<int> seen(static_cast<std::size_t>(here * size));
      for (int rank = 0; rank < size; ++rank) {
        context_shard const part{{rank, size}, balanced};
        CHECK(part.whole(here) == here * size);
        CHECK(part.stretch_count() == (balanced ? 2 : 1) * size);
        std::int64_t row = 0;
        std::int64_t sum = 0;  // of positions: of the work, as causal attention counts it
        for (int which = 0; which < part.stretches(); ++which) {
          auto const at = part.at(which, here);
          CHECK(at.row == row);
          row += at.count;
          for (auto p = at.position; p < at.position + at.count; ++p) {
            ++seen[static_cast<std::size_t>(p)];
            sum += p;
          }
        }
        CHECK(row == here);
        if (balanced) CHECK(2 * sum == here * (here * size - 1));
      }
      for (int const times : seen) CHECK(times == 1);
    }
  }
}

TEST_CASE("a single rank has whole samples") {
  auto const& alone = context_group<environment<precision::fp32>>::one();
  CHECK(alone.size() == 1);
  CHECK(alone.part() == context_shard{});
}
