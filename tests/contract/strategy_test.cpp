#include "trireme/contract/strategy.hpp"

#include "../catch.hpp"
#include "trireme/parallel/strategies.hpp"

using namespace trireme;

namespace {

/// The smallest strategy, and models that each lack one requirement.
struct archetype {
  static constexpr distribution optimizer_state = distribution::replicate;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  std::int64_t bucket_bytes = 1;
  archetype(archetype const&) = delete;
};
struct without_state : archetype {
  static constexpr int optimizer_state = 0;
};
struct without_gradients : archetype {
  static constexpr int gradients = 0;
};
struct without_parameters : archetype {
  static constexpr int parameters = 0;
};
struct without_buckets : archetype {
  void bucket_bytes();
};

static_assert(strategy<archetype>);
static_assert(!declares_optimizer_state<without_state> && !strategy<without_state>);
static_assert(!declares_gradients<without_gradients> && !strategy<without_gradients>);
static_assert(!declares_parameters<without_parameters> && !strategy<without_parameters>);
static_assert(!has_bucket_bytes<without_buckets> && !strategy<without_buckets>);
static_assert(strategy<parallel::data> && strategy<parallel::zero<1>>);

}  // namespace

TEST_CASE("strategies are compared, and printed as their source", "[contract]") {
  CHECK(parallel::data{} == parallel::data{.bucket_bytes = 25 << 20});
  CHECK(to_string(parallel::data{.bucket_bytes = 8}) == "parallel::data{.bucket_bytes = 8}");
  CHECK(to_string(parallel::zero<1>{.bucket_bytes = 8}) == "parallel::zero<1>{.bucket_bytes = 8}");
}
