#include "trireme/contract/optimizer.hpp"

#include <array>
#include <string_view>

#include "../catch.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp32>;

/// The least that is an optimizer, and models that each lack one thing.
struct archetype {
  static constexpr std::array<std::string_view, 0> moment_names{};
  double clip = 0;
  double rate_at(std::int64_t) const { return 0; }
  void update(update_segment<env> const&, std::int64_t) const {}
  archetype() = default;
  archetype(archetype const&) = delete;
};
struct without_names : archetype {
  static constexpr int moment_names = 0;
};
struct without_rate : archetype {
  void rate_at(std::int64_t) const;
};
struct without_clip : archetype {
  void clip();
};
struct without_update : archetype {
  void update(int) const;
};
struct update_changes_it : archetype {
  void update(update_segment<env> const&, std::int64_t);
};

static_assert(optimizer<archetype, env>);
static_assert(!has_moment_names<without_names> && !optimizer<without_names, env>);
static_assert(!has_rate_at<without_rate> && !optimizer<without_rate, env>);
static_assert(!has_clip<without_clip> && !optimizer<without_clip, env>);
static_assert(!has_update<without_update, env> && !optimizer<without_update, env>);
static_assert(!has_update<update_changes_it, env> && !optimizer<update_changes_it, env>);

template <class O>
constexpr bool serves_all = optimizer<O, env>&& optimizer<O, environment<precision::fp64>>&&
    optimizer<O, environment<precision::bf16>>&& optimizer<O, environment<precision::fp32, phantom>>;
static_assert(serves_all<optim::adamw> && serves_all<optim::sgd>);

}  // namespace

TEST_CASE("the optimizer concept accepts the archetype and refuses one broken model a requirement", "[contract]") {
  SUCCEED("checked by the compiler");
}
