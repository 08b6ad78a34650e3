#include "trireme/interop/torch_step_counts.hpp"

#include "torch_cases.hpp"

using trireme::interop::torch_step_counts;

TEST_CASE("the sums of three counts stay apart in one number, for up to a million ranks", "[torch]") {
  torch_step_counts const with_batch{.batches = 1}, undefined{.batches = 1, .undefined = 1}, raises{.raises = 1};
  CHECK(torch_step_counts::from_sum(3 * with_batch.number() + 2 * undefined.number() + raises.number()) ==
        torch_step_counts{.batches = 5, .undefined = 2, .raises = 1});
  CHECK(torch_step_counts::from_sum(0) == torch_step_counts{});
  constexpr std::int64_t million = 1'000'000;
  torch_step_counts const all{.batches = 1, .undefined = 1, .raises = 1};
  CHECK(torch_step_counts::from_sum(million * all.number()) ==
        torch_step_counts{.batches = million, .undefined = million, .raises = million});
}
